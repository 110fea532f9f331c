"""How F5-TTS's solver is run; the defaults are the system's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tts_compress.models.options import Options

__all__ = ["F5Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Options(Options):
    """Settings of inference, named as in `F5TTS.infer`.

    Raises:
        ModelError: One of them is no number, or out of its range.
    """

    # Outside these, time would run backwards or not at all.
    limits: ClassVar = {
        "nfe_step": (1, 1000),
        "cfg_strength": (0, 100),
        "sway_sampling_coef": (-1, 1.75),
        "speed": (0.1, 10),
    }

    nfe_step: int = 32
    """Steps of the solver, 1 to 1000; each runs the transformer once."""

    cfg_strength: float = 2.0
    """How far guidance goes beyond the prompt, 0 to 100; 0 halves the work."""

    sway_sampling_coef: float = -1.0
    """How the steps are spread, -1 to 1.75: below 0 more of them are early."""

    speed: float = 1.0
    """Of speech, 0.1 to 10 times the recording's."""
