"""Loudness and pitch that sway beside those of another rendering: tremolo, roughness, vibrato."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.numerics import faults
from tts_compress.numerics.faults import Alignment, Wave

_SMOOTH_S = 0.06
"""Time over which levels are averaged: frames of two seeds differ from one to the next."""

_PART_S = 0.4
"""Length of the parts whose ups and downs are analysed: beats of 2.5 Hz are told apart."""

_SPEECH_DB, _SOFT = -30.0, 0.2
"""Parts are of speech where at most this share is softer than that, relative to loud speech."""

_ROUGH_HZ = 15.0, 90.0
"""Beats that make a voice rough: slower ones are those of sounds, faster ones are its pitch."""

_Array: TypeAlias = npt.NDArray[np.float64]


def sway(values: _Array, times_s: _Array) -> tuple[float, float]:
    """Return the median distance from the median, and the time of the largest; 0 for none."""
    if not len(values):
        return 0.0, 0.0
    distances = np.abs(values - np.median(values))
    return float(np.median(distances)), float(times_s[distances.argmax()])


def level_sway(alignment: Alignment) -> tuple[float, float]:
    """Return by how many dB the loudness sways beside the reference's, and when, in s."""
    before, after = (alignment.levels[side][alignment.path[:, side]] for side in (0, 1))
    sound = (before >= faults.LOUDER_DB) & (after >= faults.SOUND_DB)
    frames = max(1, round(_SMOOTH_S / alignment.hop_s))
    if sound.sum() < frames:
        return 0.0, 0.0
    smooth = np.convolve((after - before)[sound], np.full(frames, 1.0 / frames), "valid")
    return sway(smooth, alignment.path[sound, 1] * alignment.hop_s)


def roughness(reference: Wave, candidate: Wave, rate: int) -> tuple[float, float]:
    """Return the dB (root mean square) of a steady beat that is added, and its time in s.

    For sounds of any timing and noise: what both have, or speech has at other frequencies nearby,
    is no beat.
    """
    (before, _), (after, times_s) = (_beats(wave, rate) for wave in (reference, candidate))
    if not (len(before) and len(after)):
        return 0.0, 0.0
    usual = np.pad(before.mean(axis=0), 2, mode="edge")
    added = after.mean(axis=0) - np.lib.stride_tricks.sliding_window_view(usual, 5).max(axis=1)
    begin, end = (round(hz * _PART_S) for hz in _ROUGH_HZ)
    beat = begin + int(added[begin : end + 1].argmax())
    at_s = times_s[after[:, beat].argmax()]
    return float(np.sqrt(max(0.0, added[beat]))), float(at_s)


def _beats(wave: Wave, rate: int) -> tuple[_Array, _Array]:
    """Return the power of the level's ups and downs in parts with speech, and their times in s.

    The power has the shape `[parts, bins]`, and is in dB squared.
    """
    levels = faults.brief_levels(wave, rate, steps=2)
    size = round(_PART_S / faults.STEP_S)
    if len(levels) < size:
        return np.zeros((0, size // 2 + 1)), np.zeros(0)
    # Silence may be as deep as it likes.
    levels = np.maximum(levels - np.quantile(levels, 0.95), 1.2 * _SPEECH_DB)
    parts = np.lib.stride_tricks.sliding_window_view(levels, size)[:: size // 8]
    speech = np.quantile(parts, _SOFT, axis=1) > _SPEECH_DB
    times_s = np.arange(len(parts), dtype=np.float64) * (size // 8 * faults.STEP_S)
    taper = np.hanning(size + 1)[:-1]
    spectra = np.fft.rfft(parts[speech] * (taper / taper.sum()), axis=1)
    return 2.0 * np.square(np.abs(spectra)), times_s[speech]
