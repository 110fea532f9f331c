"""Sound of the spectra that a graph returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Samples
from tts_compress.models.contract.schema import Spectrum


def to_samples(stated: Spectrum, outputs: Sequence[npt.NDArray[Any]]) -> Samples:
    """Return the sound of spectra.

    Overlapping windowed frames are added and divided by the sum of the squared windows, as torch
    and sherpa-onnx do.

    Args:
        stated: The contract's table.
        outputs: What its form names, each of shape `[1, n_fft / 2 + 1, T]`.

    Returns:
        Shape `[(T - 1) * hop_length]` where frames are centred, else with `n_fft` more.
    """
    spectra = _complex(stated.form, [np.asarray(output)[0] for output in outputs]).T
    if stated.normalized:
        spectra = spectra * np.float32(np.sqrt(stated.n_fft))
    frames = np.fft.irfft(spectra, n=stated.n_fft, axis=1)
    window = np.ones(stated.n_fft)
    if stated.window == "hann":
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(stated.n_fft) / stated.n_fft)
    length = stated.n_fft + (len(frames) - 1) * stated.hop_length
    sound, weights = np.zeros(length), np.zeros(length)
    for number, frame in enumerate(frames):
        span = slice(number * stated.hop_length, number * stated.hop_length + stated.n_fft)
        sound[span] += frame * window
        weights[span] += window**2
    sound = np.divide(sound, weights, out=sound, where=weights > np.finfo(np.float32).tiny)
    cut = stated.n_fft // 2 if stated.center else 0
    return sound[cut : length - cut].astype(np.float32)


def _complex(form: str, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the complex spectra that a graph's outputs stand for."""
    first, second, *rest = parts
    if form == "real-imaginary":
        return np.asarray(first + 1j * second)
    if form == "magnitude-phase":
        return np.asarray(first * np.exp(1j * second))
    return np.asarray(first * (second + 1j * rest[0]))
