"""The mel scale of HTK, and triangular filters on it."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt


@lru_cache(maxsize=8)
def mel_filters(
    sample_rate: int, n_fft: int, bands: int, limits_hz: tuple[float, float] | None = None
) -> npt.NDArray[np.float64]:
    """Return triangular filters of height 1, evenly spaced in mel, shape `[bands, n_fft // 2 + 1]`.

    A frequency of f Hz is 2595 · log10(1 + f / 700) mel.

    Args:
        sample_rate: Samples per second, Hz.
        n_fft: Samples in a transform.
        bands: Number of filters.
        limits_hz: Lower end of the lowest filter and upper end of the highest, Hz; by default 0
            and half the sample rate.
    """
    low, high = limits_hz or (0.0, sample_rate / 2)
    lowest, highest = (2595.0 * np.log10(1.0 + limit / 700.0) for limit in (low, high))
    mels = np.linspace(lowest, highest, bands + 2)
    edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    bins = np.fft.rfftfreq(n_fft, 1.0 / sample_rate)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)))
