"""Distance of two renderings of a text from a third, and the unit it is counted in."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.numerics.spectra import MELS, compare_warped, log_mel

_LEVEL_DB = -12.0
"""Root mean square, below full scale, at which a voice is analysed.

The analysis hears nothing below its floor of -60 dB, then 48 dB below the voice: with a voice of 65
dB SPL that is 17 dB SPL in each band, a quiet room. How loud a voice is makes no difference.
"""

_LOWEST_MEL = 150.0
"""Centre of the lowest band, 100 Hz: what is below is hardly heard at that level, and differs
between renderings that are heard as the same."""

_OVERLAP = 16
"""Frames of 4 ms at 16 kHz: a copy that is late by part of a frame is no distance away."""

_LONG_S = 30.0
"""Seconds from which on frames are as coarse as those of other distances: memory grows with the
square of their number."""

_TELEPHONE_LEVEL = 10.0 ** (-26.0 / 20.0)
"""Root mean square of speech on a telephone line (ITU-T P.56)."""

_MU = 255.0


class Distances(NamedTuple):
    """Distances from one other rendering, decibels."""

    reference: float
    candidate: float
    coded: float
    """That of the reference's audio after mu-law."""

    closer: float | None = None
    """How much closer together two seeds of the candidate are than of the reference; None where
    a text has no other seed to compare with."""


def observe(reference: Audio, candidate: Audio, other: Audio) -> Distances:
    """Return how far two renderings are from a third.

    Args:
        reference: A rendering by the reference.
        candidate: The candidate's, with the same seed or of the same features.
        other: What both are compared with: the reference's with another seed, or a recording.
    """
    rates = {audio.sample_rate for audio in (reference, candidate, other)}
    if len(rates) > 1:
        raise ValueError(f"cannot compare audio at {sorted(rates)} Hz")
    coded = mu_law(reference)
    longest = max(audio.duration_s for audio in (reference, candidate, other))
    overlap = _OVERLAP if longest < _LONG_S else 4
    target = spectrum(other, overlap)
    spectra = (spectrum(audio, overlap) for audio in (reference, candidate, coded))
    return Distances(*(compare_warped(each, target).distance_db for each in spectra))


def seeds_apart(first: Audio, second: Audio) -> float:
    """Return the distance of two renderings of a text by one voice, decibels."""
    longest = max(first.duration_s, second.duration_s)
    overlap = _OVERLAP if longest < _LONG_S else 4
    return compare_warped(spectrum(first, overlap), spectrum(second, overlap)).distance_db


def mu_law(audio: Audio) -> Audio:
    """Return the audio as 8-bit mu-law keeps it, at the level of a telephone line."""
    scaled = np.clip(_at_level(audio, _TELEPHONE_LEVEL), -1.0, 1.0)
    codes = np.round(127.0 * np.sign(scaled) * np.log1p(_MU * np.abs(scaled)) / np.log1p(_MU))
    decoded = np.sign(codes) * np.expm1(np.abs(codes) / 127.0 * np.log1p(_MU)) / _MU
    return replace(audio, samples=decoded.astype(np.float32))


def spectrum(audio: Audio, overlap: int = _OVERLAP) -> npt.NDArray[np.float64]:
    """Return the log-mel spectrum that distances are taken of, shape `[frames, bands]`."""
    samples = _at_level(audio, 10.0 ** (_LEVEL_DB / 20.0)).astype(np.float32)
    highest = 2595.0 * np.log10(1.0 + audio.sample_rate / 1400.0)
    lowest = int(np.ceil(_LOWEST_MEL / highest * (MELS + 1))) - 1
    return log_mel(replace(audio, samples=samples), overlap)[:, lowest:]


def _at_level(audio: Audio, level: float) -> npt.NDArray[np.float64]:
    """Return the samples with another root mean square; silence stays silent."""
    samples = np.nan_to_num(audio.samples.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    present = np.sqrt(np.mean(np.square(samples))) if len(samples) else 0.0
    return samples * (level / present) if present else samples
