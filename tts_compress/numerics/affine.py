"""Affine 8-bit codes: a real number is scale · (code - zero)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVELS = 255
"""Steps between the lowest and the highest 8-bit code."""

_LEAST = 1 / 64
"""The narrowest range of a channel, in shares of the widest."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Unsigned 8-bit codes of real numbers."""

    scale: float
    """Rounded to float32, as graphs and kernels hold it."""

    zero: int
    """The code of zero, 0 to 255."""

    @classmethod
    def spanning(cls, low: float, high: float, *, single: bool = False) -> "Affine":
        """Return the codes that cover a range; zero is always covered and exact.

        A range too narrow for a normal float32 scale holds nothing but zeros: its scale is 1.

        Args:
            low: The smallest value.
            high: The largest.
            single: Divide in float32, which decides otherwise where zero lies in the middle
                between two codes, as in a symmetric range.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / LEVELS
        if not np.float32(scale) > np.finfo(np.float32).tiny:
            return cls(1.0, 0)
        divisor = np.float32(scale) if single else scale
        return cls(float(np.float32(scale)), int(np.clip(np.rint(-low / divisor), 0, LEVELS)))

    def times(self, factor: float) -> "Affine":
        """Return the codes under which the same bytes mean `factor` times as much."""
        return Affine(self.scale * factor, self.zero)


@dataclass(frozen=True, slots=True, eq=False)
class ChannelCodes:
    """Unsigned 8-bit codes of the channels of a tensor, each of which has its own range."""

    scales: npt.NDArray[np.float32]
    """Shape (C,)."""

    zeros: npt.NDArray[np.uint8]
    """The codes of zero, shape (C,)."""

    @classmethod
    def spanning(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> "ChannelCodes":
        """Return the codes that cover the ranges of channels, shapes (C,); zero is exact.

        A channel that hardly spoke in calibration may speak up later: its range is at least
        `_LEAST` of the widest.
        """
        lows, highs = np.minimum(low, 0.0), np.maximum(high, 0.0)
        widths = highs - lows
        widest = max(float(widths.max()), float(np.finfo(np.float32).tiny) * LEVELS / _LEAST)
        scales = (np.maximum(widths, _LEAST * widest) / LEVELS).astype(np.float32)
        return cls(scales, np.clip(np.rint(-lows / scales), 0, LEVELS).astype(np.uint8))
