"""Affine uint8 codes: a real number is scale · (code - zero)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tts_compress.onnx.graph import Array

__all__ = ["Affine", "quantize_bias"]


@dataclass(frozen=True, slots=True)
class Affine:
    """An 8-bit code of real numbers."""

    scale: float
    zero: int
    """The code of zero, 0 to 255."""

    @classmethod
    def spanning(cls, low: float, high: float) -> Affine:
        """Return the code that covers a range; zero is always covered and exact."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return cls(float(np.float32(scale)), round(-low / scale))

    def times(self, factor: float) -> Affine:
        """Return the code under which the same bytes mean `factor` times as much."""
        return Affine(self.scale * factor, self.zero)


def quantize_bias(bias: Array, scales: Array) -> Array:
    """Return a bias in units of the accumulator: int32 of (C_out,) / (C_out,)."""
    codes: Array = np.rint(bias.astype(np.float64) / scales).clip(-(2**31), 2**31 - 1)
    return codes.astype(np.int32)
