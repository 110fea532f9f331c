"""The mel scales of HTK and Slaney, and triangular filters on them."""

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
    return _triangles(edges, sample_rate, n_fft)


@lru_cache(maxsize=8)
def slaney_filters(sample_rate: int, n_fft: int, bands: int) -> npt.NDArray[np.float64]:
    """Return filters of area 1 on Slaney's scale, up to half the rate, as librosa's by default.

    The scale is linear up to 1 kHz (15 mel) and logarithmic above, 27 mel for a factor of 6.4.
    Shape and arguments are those of `mel_filters`.
    """
    step = np.log(6.4) / 27.0
    highest = 15.0 + np.log(sample_rate / 2000.0) / step
    mels = np.linspace(0.0, highest, bands + 2)
    edges = np.where(mels < 15.0, mels * 200.0 / 3.0, 1000.0 * np.exp(step * (mels - 15.0)))
    widths = edges[2:] - edges[:-2]
    return np.asarray(_triangles(edges, sample_rate, n_fft) * (2.0 / widths)[:, None])


def slaney_spectrum(
    samples: npt.NDArray[np.float32], sample_rate: int, *, window: int, hop: int, bands: int
) -> npt.NDArray[np.float64]:
    """Return the power in each of Slaney's filters as librosa does by default.

    Args:
        samples: Shape `[T]`.
        sample_rate: Samples per second, Hz.
        window: Samples of Hann's window; frames are centred, with zeros around the samples.
        hop: Samples from one frame to the next.
        bands: Number of filters.

    Returns:
        Shape `[frames, bands]`.
    """
    padded = np.pad(samples, window // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.square(np.abs(np.fft.rfft(frames * taper, axis=1)))
    return np.asarray(power @ slaney_filters(sample_rate, window, bands).T)


def _triangles(
    edges: npt.NDArray[np.float64], sample_rate: int, n_fft: int
) -> npt.NDArray[np.float64]:
    """Return filters of height 1 between edges in Hz, shape `[bands + 2]`."""
    bins = np.fft.rfftfreq(n_fft, 1.0 / sample_rate)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)))
