"""The inputs of HiFi-GAN: log mel spectra as the published models were trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

SAMPLE_RATE = 22_050
_FFT, _HOP, _BANDS = 1024, 256, 80
_TOP_MEL = 15 + 27 * np.log(8.0) / np.log(6.4)
"""8 kHz on Slaney's scale, which is linear below 1 kHz, its mel 15."""


def mel_spectrogram(samples: Any) -> Any:
    """Return `(1, 80, frames)`, FP32, of samples in [-1, 1]."""
    padded = np.pad(samples, (_FFT - _HOP) // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    spectra = np.fft.rfft(frames * np.hanning(_FFT + 1)[:-1], axis=1)
    magnitudes = np.sqrt(np.abs(spectra) ** 2 + 1e-9)
    return np.log((_filters() @ magnitudes.T).clip(1e-5)).astype(np.float32)[None]


def _filters() -> Any:
    """Return triangular filters of equal area, `(80, 513)`, from 0 to 8 kHz."""
    mels = np.linspace(0, _TOP_MEL, _BANDS + 2)
    linear = mels * 200 / 3
    edges = np.where(mels < 15, linear, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    bins = np.linspace(0, SAMPLE_RATE / 2, _FFT // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.minimum(rising, falling).clip(0) * (2 / (edges[2:] - edges[:-2]))[:, None]
