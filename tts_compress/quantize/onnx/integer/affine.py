"""Affine 8-bit codes: a real number is scale · (code - zero).

Codes and their zeros are counted from the lowest code here, 0 to 255, whether a graph holds them as
uint8 or, all 128 lower, as int8; only the emitter, which writes zeros and bounds, tells the two
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tts_compress.quantize.onnx.rewrite.graph import Array

__all__ = ["Affine", "quantize_bias", "quantize_channels"]


@dataclass(frozen=True, slots=True)
class Affine:
    """An 8-bit code of real numbers."""

    scale: float
    zero: int
    """The code of zero, 0 to 255, counted from the lowest."""

    @classmethod
    def spanning(cls, low: float, high: float) -> Affine:
        """Return the code that covers a range; zero is always covered and exact."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return cls(float(np.float32(scale)), round(-low / scale))

    def times(self, factor: float) -> Affine:
        """Return the code under which the same bytes mean `factor` times as much."""
        return Affine(self.scale * factor, self.zero)


def quantize_channels(weight: Array, limit: int) -> tuple[Array, Array]:
    """Return int8 weights and one scale for each output channel.

    Args:
        weight: Real weights, (C_out, ...).
        limit: The largest magnitude of a code: 127, or less where products would saturate.

    Returns:
        Codes in [-limit, limit] of the weight's shape, and float32 scales (C_out,).
    """
    rows = weight.reshape(weight.shape[0], -1).astype(np.float64)
    peaks = np.abs(rows).max(axis=1)
    scales = np.where(peaks > 0, peaks / limit, 1.0).astype(np.float32)
    codes = np.rint(rows / scales[:, None]).clip(-limit, limit).astype(np.int8)
    return codes.reshape(weight.shape), scales


def quantize_bias(bias: Array, scales: Array) -> Array:
    """Return a bias in units of the accumulator: int32 of (C_out,) / (C_out,)."""
    codes: Array = np.rint(bias.astype(np.float64) / scales).clip(-(2**31), 2**31 - 1)
    return codes.astype(np.int32)
