"""Ranges of values, and the codes of 8 or 16 bits that span them.

Ranges come from a histogram of a stream of values, in constant memory. Codes are affine: a real
number is scale · (code - zero).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.errors import QuantizationError
from tts_compress.recipes.formats import Observer
from tts_compress.recipes.recipe import Calibration

LEVELS = 255
"""Steps between the lowest and the highest 8-bit code."""

WIDE_LEVELS = 65_535
"""The same of 16-bit codes."""

_LEAST = 1 / 64
"""The narrowest range of a channel, in shares of the widest."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Unsigned codes of real numbers, of 8 or 16 bits."""

    scale: float
    """Rounded to float32, as graphs and kernels hold it."""

    zero: int
    """The code of zero."""

    levels: int = LEVELS
    """The highest code; the lowest is 0."""

    @classmethod
    def spanning(
        cls, low: float, high: float, *, single: bool = False, levels: int = LEVELS
    ) -> "Affine":
        """Return the codes that cover a range; zero is always covered and exact.

        A range too narrow for a normal float32 scale holds nothing but zeros: its scale is 1.

        Args:
            low: The smallest value.
            high: The largest.
            single: Divide in float32, which decides otherwise where zero lies in the middle
                between two codes, as in a symmetric range.
            levels: The highest code.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / levels
        if not np.float32(scale) > np.finfo(np.float32).tiny:
            return cls(1.0, 0, levels)
        divisor = np.float32(scale) if single else scale
        zero = int(np.clip(np.rint(-low / divisor), 0, levels))
        return cls(float(np.float32(scale)), zero, levels)

    def times(self, factor: float) -> "Affine":
        """Return the codes under which the same bytes mean `factor` times as much."""
        return Affine(self.scale * factor, self.zero, self.levels)


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


Range: TypeAlias = tuple[float, float]
_Counts: TypeAlias = npt.NDArray[np.float64]

_BINS = 4_096
_LEVELS = 256
_FRACTIONS = np.linspace(1.0, 0.4, 61)
"""Shares of the full range that the searching observers try, widest first."""


class Histogram:
    """Counts of values in bins that are symmetric around zero and widen as needed.

    When a value lies outside, neighbouring bins are merged and the span doubles, so no value is
    ever dropped and no earlier one has to be seen again.
    """

    def __init__(self) -> None:
        self.counts: _Counts = np.zeros(_BINS)
        self.span = 0.0
        """The bins cover `[-span, span]`; 0 while only zeros were seen."""

        self.low = np.inf
        self.high = -np.inf

    def add(self, values: npt.NDArray[np.float32], low: float, high: float) -> None:
        """Add values.

        Args:
            values: A sample of a tensor, any shape.
            low: The whole tensor's smallest value.
            high: The whole tensor's largest value.
        """
        if not (np.isfinite(low) and np.isfinite(high) and np.isfinite(values).all()):
            raise QuantizationError("calibration met values that are not finite")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(abs(low), abs(high))
        if self.span == 0:
            if largest == 0:
                self.counts[_BINS // 2] += values.size
                return
            # A power of two, so that histograms of the same values are equal in any order.
            self.span = float(2.0 ** np.ceil(np.log2(largest)))
        while largest > self.span:
            self._widen()
        # In float64, because bins of very small or large values have no edges in float32.
        wide = values.astype(np.float64)
        counts, _ = np.histogram(wide, bins=_BINS, range=(-self.span, self.span))
        self.counts += counts

    @property
    def centers(self) -> _Counts:
        """The middle of each bin, shape `[bins]`."""
        width = 2 * self.span / _BINS
        centers: _Counts = (np.arange(_BINS, dtype=np.float64) + 0.5) * width - self.span
        return centers

    def _widen(self) -> None:
        merged = self.counts.reshape(-1, 2).sum(axis=1)
        self.counts = np.zeros(_BINS)
        quarter = _BINS // 4
        self.counts[quarter : 3 * quarter] = merged
        self.span *= 2


def choose_range(histogram: Histogram, calibration: Calibration) -> Range:
    """Return an observer's range for the observed values; it always holds zero."""
    if histogram.low > histogram.high:
        raise QuantizationError("calibration saw no values; is the calibration set empty?")
    full = (min(histogram.low, 0.0), max(histogram.high, 0.0))
    return _OBSERVERS[calibration.observer](histogram, full, calibration)


def _percentile(histogram: Histogram, full: Range, percentile: float) -> Range:
    """Cut the same share of values off each tail."""
    tail = (1 - percentile / 100) * histogram.counts.sum()
    edges = np.linspace(-histogram.span, histogram.span, _BINS + 1)
    cumulative = np.cumsum(histogram.counts)
    low = edges[int(np.searchsorted(cumulative, tail, side="right"))]
    from_above = np.cumsum(histogram.counts[::-1])
    high = edges[_BINS - int(np.searchsorted(from_above, tail, side="right"))]
    return max(full[0], min(float(low), 0.0)), min(full[1], max(float(high), 0.0))


def _search(
    histogram: Histogram, full: Range, cost: Callable[[_Counts, _Counts, Range], float]
) -> Range:
    """Return the shrunk range of least cost, each side on its own while the other is held."""
    used = histogram.counts > 0
    centers, counts = histogram.centers[used], histogram.counts[used]
    low, high = full

    def best(tried: Iterable[Range]) -> Range:
        return min(tried, key=lambda limits: cost(centers, counts, limits))

    _, high = best((low, high * fraction) for fraction in _FRACTIONS)
    low, _ = best((low * fraction, high) for fraction in _FRACTIONS)
    return float(low), float(high)


def _step(limits: Range) -> float:
    return max((limits[1] - limits[0]) / (_LEVELS - 1), float(np.finfo(np.float32).tiny))


def _squared_error(centers: _Counts, counts: _Counts, limits: Range) -> float:
    """Return the summed squared rounding and clipping error."""
    step = _step(limits)
    rounded = np.rint((np.clip(centers, *limits) - limits[0]) / step) * step + limits[0]
    return float(np.sum(counts * (centers - rounded) ** 2))


def _divergence(centers: _Counts, counts: _Counts, limits: Range) -> float:
    """Return the Kullback-Leibler divergence of the values from their rounded distribution.

    After Migacz, "8-bit Inference with TensorRT" (2017): the clipped mass is added to the edges
    of the reference only, so that clipping costs; each level's mass is spread over its bins.
    """
    step = _step(limits)
    levels = np.rint((np.clip(centers, *limits) - limits[0]) / step).astype(int)
    inside = (centers >= limits[0]) & (centers <= limits[1])
    mass = np.bincount(levels[inside], counts[inside], _LEVELS)
    bins = np.bincount(levels[inside], minlength=_LEVELS)
    spread = (mass / np.maximum(bins, 1))[levels] * inside
    if not inside.any():
        return float("inf")
    reference = np.where(inside, counts, 0.0)
    places = np.flatnonzero(inside)
    reference[places[0]] += counts[centers < limits[0]].sum()
    reference[places[-1]] += counts[centers > limits[1]].sum()
    share, rounded = reference / reference.sum(), spread / max(spread.sum(), 1e-300)
    seen = share > 0
    return float(np.sum(share[seen] * np.log(share[seen] / np.maximum(rounded[seen], 1e-12))))


_OBSERVERS: dict[Observer, Callable[[Histogram, Range, Calibration], Range]] = {
    Observer.MINMAX: lambda _, full, __: full,
    Observer.PERCENTILE: lambda seen, full, settings: _percentile(seen, full, settings.percentile),
    Observer.ENTROPY: lambda seen, full, _: _search(seen, full, _divergence),
    Observer.MSE: lambda seen, full, _: _search(seen, full, _squared_error),
}
"""Functions from a histogram, the range of all its values and the settings to a range."""
