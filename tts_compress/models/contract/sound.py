"""Sound that a contract reads and makes: recordings to speak like, and spectra made audible."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Samples, read_wav, resample
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.contract.inputs import Hearing, MelFeatures, Recorded
from tts_compress.models.contract.schema import Spectrum
from tts_compress.models.files import REFERENCE, check_duration
from tts_compress.numerics.spectra import centred_magnitudes, mel_filters
from tts_compress.reading import MOST_ARRAY_BYTES, bounded_bytes


def read_recording(path: Path | None, stated: Recorded) -> Samples:
    """Return the samples of the recording that a voice speaks like, shape `[T]`."""
    if path is None:
        raise ModelError(
            f"the voice speaks like a recording, and there is none; put {REFERENCE} beside its "
            "graphs, or give one (--reference)"
        )
    check_duration(path, (0, stated.longest_s))
    audio = read_wav(path)
    samples = resample(audio.samples, audio.sample_rate, stated.rate)
    if not samples.size or not np.isfinite(samples).all():
        raise ModelError(f"'{path}' is empty or holds values that are not finite; record it again")
    return samples


def hear(path: Path | None, stated: Hearing) -> tuple[Samples, float]:
    """Return what graphs are given of a recording, and what their sound is multiplied by."""
    samples, gain = read_recording(path, stated), 1.0
    if stated.level is not None:
        level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
        if level == 0:
            raise ModelError(f"'{path}' is silent; give a recording of the voice")
        gain = min(level / stated.level, 1.0)
        samples = (samples / gain).astype(np.float32)
    features = samples if stated.mel is None else log_mel(samples, stated.rate, stated.mel)
    return features[None], gain


def log_mel(samples: Samples, rate: int, stated: MelFeatures) -> Samples:
    """Return the features of samples, shape `[frames, bands]`."""
    window, hop = stated.n_fft, stated.hop_length
    with model_errors("the recording's features need too much memory"):
        bounded_bytes((len(samples) // hop + 1, window), 8, MOST_ARRAY_BYTES)
    magnitudes = centred_magnitudes(samples, window, hop, mode="reflect")
    frames = max((len(samples) + hop // 2) // hop, 1)
    mel = magnitudes[:frames] @ mel_filters(rate, window, stated.bands).T
    return (np.log(np.maximum(mel, stated.floor)) * stated.scale).astype(np.float32)


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
