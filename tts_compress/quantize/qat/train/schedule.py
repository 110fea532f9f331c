"""How fast weights move at each update."""

from __future__ import annotations

from math import cos, pi
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tts_compress.quantize.qat.train.options import TrainingOptions

__all__ = ["rate_share"]

_LAST = 0.01


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
