"""Classical measures of a voice, which need no reference; none judges a report."""

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio

_Floats: TypeAlias = npt.NDArray[np.float64]

_LOUD_DB = 20.0
"""Frames within so much of the loudest twentieth are voice."""

_BANDS_HZ = (200, 500, 1000, 2000, 3000, 4000, 5500, 7500)


def measure_voice(audio: Audio) -> dict[str, float]:
    """Return the measures of a voice by name, in decibels.

    Cepstral peak prominence: Hillenbrand et al., JSHR 1994. Harmonics to noise: Boersma, IFA
    Proceedings 1993. Spectral contrast, peaks over valleys in a band: Jiang et al., ICME 2002.

    Args:
        audio: At 16 kHz, not silent.
    """
    rate = audio.sample_rate
    width, hop = rate // 25, rate // 100
    samples = np.asarray(audio.samples, np.float64)
    padded = np.pad(samples, (0, max(0, width - len(samples))))
    taper = np.hanning(width + 1)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(padded, width)[::hop] * taper
    levels = 10.0 * np.log10(np.square(frames).mean(axis=1) + 1e-12)
    loud = levels > np.quantile(levels, 0.95) - _LOUD_DB
    power = np.square(np.abs(np.fft.rfft(frames, 1024, axis=1)))
    spectrum = 10.0 * np.log10(power + 1e-9)
    quiet = levels[levels <= np.quantile(levels, 0.1)].mean()
    return {
        "cepstral peak prominence": float(_prominence(spectrum, rate)[loud].mean()),
        "harmonics to noise": float(_harmonics(frames, taper, rate)[loud].mean()),
        "spectral contrast": _contrast(spectrum[loud], rate),
        "level of the quietest tenth": float(
            quiet - 10.0 * np.log10((10.0 ** (levels / 10.0)).mean())
        ),
    }


def _prominence(spectrum: _Floats, rate: int) -> _Floats:
    """Return the cepstrum's peak over its regression line in each frame."""
    cepstrum = np.abs(np.fft.irfft(spectrum, axis=1))[:, : spectrum.shape[1] - 1]
    decibels = 20.0 * np.log10(cepstrum + 1e-9)
    first, low, high = rate // 1000, rate // 400, rate // 60
    places = np.arange(first, decibels.shape[1])
    centred = places - places.mean()
    slopes = decibels[:, first:] @ centred / (centred @ centred)
    peaks = low + decibels[:, low:high].argmax(axis=1)
    lines = decibels[:, first:].mean(axis=1) + slopes * (peaks - places.mean())
    return np.asarray(decibels[np.arange(len(decibels)), peaks] - lines)


def _harmonics(frames: _Floats, taper: _Floats, rate: int) -> _Floats:
    """Return harmonics to noise by the autocorrelation's peak over the window's own."""
    low, high = rate // 400, rate // 60

    def correlate(signal: _Floats) -> _Floats:
        power = np.square(np.abs(np.fft.rfft(signal, 2048, axis=-1)))
        return np.asarray(np.fft.irfft(power, axis=-1)[..., :high])

    found, window = correlate(frames), correlate(taper)
    normalised = found / (found[:, :1] + 1e-12) / (window / window[0])
    peaks = np.clip(normalised[:, low:].max(axis=1), 1e-3, 1.0 - 1e-4)
    return np.asarray(10.0 * np.log10(peaks / (1.0 - peaks)))


def _contrast(spectrum: _Floats, rate: int) -> float:
    """Return the mean of the highest fifth of the bins of each band over its lowest fifth."""
    bins = np.fft.rfftfreq(1024, 1.0 / rate)
    found = []
    for low, high in pairwise(_BANDS_HZ):
        band = np.sort(spectrum[:, (bins >= low) & (bins < high)], axis=1)
        count = max(1, band.shape[1] // 5)
        found.append(band[:, -count:].mean() - band[:, :count].mean())
    return float(np.mean(found))
