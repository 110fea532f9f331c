"""Measures of speech: clicks, sibilants, vowels, differences between two renderings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP
from scipy.ndimage import uniform_filter1d
from torch import Tensor

from .features import HOP, log_mel, spectrum
from .speech import SAMPLE_RATE

if TYPE_CHECKING:
    from .align import Aligner

Audio = npt.NDArray[np.float32]
SIBILANTS = "sʃ"
VOWELS = "aeiouæɑɐɔəɚɛɜɪʊʌ"
LOWEST_F0, HIGHEST_F0 = 60, 300


def largest_jump(audio: Audio) -> float:
    """Largest difference of neighbouring samples. ``[n]``."""
    return float(np.abs(np.diff(audio)).max())


def worst_click(audio: Audio) -> float:
    """Largest second difference relative to its RMS within 20 ms around it. ``[n]``.

    Speech has pulses, so the value is only meaningful beside the teacher's.
    """
    second = np.diff(audio.astype(np.float64), 2)
    around = np.sqrt(uniform_filter1d(second**2, SAMPLE_RATE // 50) + 1e-8)
    return float((np.abs(second) / around).max())


def flatness(power: npt.NDArray[np.float64]) -> float:
    """Spectral flatness of a power spectrum (white noise: about 0.56). ``[bins]``."""
    return float(np.exp(np.log(power + 1e-12).mean()) / (power.mean() + 1e-12))


def high_share(power: npt.NDArray[np.float64]) -> float:
    """Energy above 3 kHz relative to all, in dB. ``[bins]``."""
    first = round(3000 / (SAMPLE_RATE / 2) * (len(power) - 1))
    return float(10 * np.log10((power[first:].sum() + 1e-12) / (power.sum() + 1e-12)))


def periodicity(frame: Audio) -> tuple[float, float]:
    """Harmonics-to-noise ratio in dB and F0 in Hz of one frame (autocorrelation). ``[n]``."""
    window = np.hanning(len(frame))
    x = (frame - frame.mean()) * window
    size = 2 * len(frame)
    own = np.fft.irfft(np.abs(np.fft.rfft(x, size)) ** 2)[: len(frame)]
    ideal = np.fft.irfft(np.abs(np.fft.rfft(window, size)) ** 2)[: len(frame)]
    ratio = (own / (own[0] + 1e-12)) / (ideal / ideal[0]).clip(1e-3)
    low, high = SAMPLE_RATE // HIGHEST_F0, SAMPLE_RATE // LOWEST_F0
    lag = low + int(ratio[low:high].argmax())
    strength = float(np.clip(ratio[lag], 1e-3, 0.9999))
    return 10 * float(np.log10(strength / (1 - strength))), SAMPLE_RATE / lag


@dataclass
class Sounds:
    """Measures of single frames, collected over many utterances."""

    sibilant_flatness: list[float] = field(default_factory=list)
    sibilant_high_db: list[float] = field(default_factory=list)
    sibilant_level_db: list[float] = field(default_factory=list)
    sibilant_hnr_db: list[float] = field(default_factory=list)
    vowel_hnr_db: list[float] = field(default_factory=list)
    vowel_f0: list[float] = field(default_factory=list)
    vowel_level_db: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return medians."""
        return {k: round(float(np.median(v)), 3) for k, v in vars(self).items() if v}


def _power(frame: Audio) -> npt.NDArray[np.float64]:
    """``[n] -> [n // 2 + 1]``."""
    return np.asarray(np.abs(np.fft.rfft(frame * np.hanning(len(frame)))) ** 2, np.float64)


def _level(frame: Audio) -> float:
    return float(10 * np.log10(np.mean(frame.astype(np.float64) ** 2) + 1e-12))


def collect(sounds: Sounds, aligner: Aligner, ids: Tensor, audio: Audio) -> None:
    """Measure the middle frames of every sibilant and vowel. ``ids [S], audio [n]``."""
    usable = torch.from_numpy(audio[: len(audio) // HOP * HOP].copy())
    if len(usable) // HOP < len(ids):
        return
    lengths = aligner.durations(ids, usable).tolist()
    position = 0
    for symbol, length in zip(symbols_of(ids.tolist()), lengths, strict=True):
        middle = (position + length // 2) * HOP + HOP // 2
        position += length
        if length < 2:
            continue
        short, long = audio[middle - 256 : middle + 256], audio[middle - 400 : middle + 400]
        if len(long) < 800:
            continue
        if symbol in SIBILANTS:
            power = _power(short)
            sounds.sibilant_flatness.append(flatness(power[len(power) // 2 :]))
            sounds.sibilant_high_db.append(high_share(power))
            sounds.sibilant_level_db.append(_level(short))
            sounds.sibilant_hnr_db.append(periodicity(long)[0])
        elif symbol in VOWELS:
            ratio, pitch = periodicity(long)
            sounds.vowel_hnr_db.append(ratio)
            sounds.vowel_f0.append(pitch)
            sounds.vowel_level_db.append(_level(short))


def symbols_of(ids: list[int]) -> list[str]:
    """Return the symbols of phoneme ids. ``[S] -> [S]``."""
    names = {ids[0]: symbol for symbol, ids in DEFAULT_PHONEME_ID_MAP.items()}
    return [names[i] for i in ids]


def mel_difference(a: Audio, b: Audio) -> float:
    """Mean absolute log-mel difference of two renderings of equal length, in dB. ``[n], [n]``."""
    n = min(len(a), len(b)) // HOP * HOP
    first, second = (log_mel(spectrum(torch.from_numpy(x[None, :n].copy()))) for x in (a, b))
    return float((first - second).abs().mean()) * 20 / float(np.log(10))
