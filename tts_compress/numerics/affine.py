"""Affine 8-bit codes: a real number is scale · (code - zero)."""

from dataclasses import dataclass

import numpy as np

LEVELS = 255
"""Steps between the lowest and the highest 8-bit code."""


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
