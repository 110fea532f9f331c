"""How NaturalSpeech2's diffusion is run; the default is the system's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tts_compress.models.options import Options

__all__ = ["NS2Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Options(Options):
    """Settings of inference, named as upstream's script names them.

    Raises:
        ModelError: The number of steps is none.
    """

    limits: ClassVar = {"inference_step": (1, 10_000)}

    inference_step: int = 200
    """Steps of the solver, 1 to 10 000; each runs the estimator once, or twice by `midpoint`."""
