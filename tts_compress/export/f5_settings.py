"""How the exported F5-TTS samples: what is a constant in its graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from tts_compress.errors import ModelError
from tts_compress.export.mel import FrameSettings

__all__ = ["F5GraphOptions", "schedule"]

# Steps of 1/32 that upstream takes where few evaluations are asked for: fine ones first.
_FEW = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (*range(9), 10, 12, 14, 16, 20, 24, 28, 32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class F5GraphOptions:
    """Constants of the graphs; the defaults are those of the official inference."""

    nfe_step: int = 32
    """How often the transformer's graph has to be called."""

    cfg_strength: float = 2.0
    """How far to go from what the network says without text; 0 halves the work."""

    sway_sampling_coef: float | None = -1.0
    """Shifts time steps to the beginning; None leaves them evenly spaced."""

    tabulate_time: bool = True
    """Store what each layer makes of a time step as a table in the place of its weights.

    The results are the same; of `F5TTS_v1_Base` 139 of 337 million weights become 4.
    """

    frames: FrameSettings = field(default_factory=FrameSettings)

    def __post_init__(self) -> None:
        if self.nfe_step < 1:
            raise ModelError(f"nfe_step is {self.nfe_step}; give 1 or more")
        if not (math.isfinite(self.cfg_strength) and self.cfg_strength >= 0):
            raise ModelError(f"cfg_strength is {self.cfg_strength}; give 0 or more")


def schedule(options: F5GraphOptions) -> torch.Tensor:
    """Return the times (nfe_step + 1,) from 0 to 1 that Euler's method goes through."""
    if options.nfe_step in _FEW:
        times = torch.tensor(_FEW[options.nfe_step], dtype=torch.float32) / 32
    else:
        times = torch.linspace(0, 1, options.nfe_step + 1)
    if options.sway_sampling_coef is None:
        return times
    sway = torch.cos(torch.pi / 2 * times) - 1 + times
    return times + options.sway_sampling_coef * sway
