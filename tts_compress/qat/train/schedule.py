"""How fast weights move at each update."""

from __future__ import annotations

from math import cos, pi
from typing import TYPE_CHECKING

from tts_compress.qat.fake_quantize import WeightFakeQuantize

if TYPE_CHECKING:
    from torch import nn

    from tts_compress.qat.train.options import TrainingOptions

__all__ = ["rate_share", "suited_rate"]

_LAST = 0.01

_FOUR_BITS, _EIGHT_BITS = 5e-5, 3e-6


def suited_rate(student: nn.Module) -> float:
    """Return a learning rate that suits how coarsely a student's weights are rounded.

    Errors of eight bits are so small that steps which make up for those of four make them worse.
    """
    parts = student.modules()
    coarse = any(isinstance(p, WeightFakeQuantize) and p.form.group is not None for p in parts)
    return _FOUR_BITS if coarse else _EIGHT_BITS


def rate_share(options: TrainingOptions, step: int) -> float:
    """Return which share of the highest learning rate an update has.

    Args:
        options: Of the training.
        step: Number of the update, from 0.
    """
    if step < options.warm_up:
        return (step + 1) / (options.warm_up + 1)
    done = (step - options.warm_up) / max(options.steps - options.warm_up, 1)
    return _LAST + (1 - _LAST) * (1 + cos(pi * done)) / 2
