"""The floor of pauses: the level of each octave where a voice is quiet, relative to its speech."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Array: TypeAlias = npt.NDArray[np.float64]

_FRAME_S = 0.02
_HOP_S = 0.01

_LOWEST_HZ = 500.0
"""Below, pauses hold hum and breath, which are hardly heard at that level."""

_HIGHEST_HZ = 16_000.0
"""Above, adults hear nothing."""

SILENT_DB = -64.0
"""Level of an octave, relative to speech, that nobody hears: 4 dB SPL beside a voice of 68."""

_QUIET_DB = -35.0
"""Frames below speech by this much are a pause."""

_HARDLY_QUIET_DB = -20.0
"""In a noisy recording the quietest tenth is, where it is below speech by this much."""

_DIGITAL_DB = -110.0
"""Frames below speech by this much hold zeros, or the noise of 24 bits; they are left out, so that
what a program puts between sentences does not hide the voice's pauses."""

_HIGH = 0.75
_LOW = 0.15
"""Share of quiet frames that have less, with the same timing and without."""

_FEWEST = 5
"""Frames; of fewer a floor would be chance."""

_BRIEF, _LOWER = 4, 1
"""Frames of the shortest noise that counts, 50 ms, and how many of them may rise less."""


@dataclass(frozen=True, slots=True)
class FloorPair:
    """Floors of a reference and of a candidate, in the octave that rises most."""

    reference_db: float
    """Relative to each one's speech, dB."""

    candidate_db: float
    at_s: float
    """A place of that floor in the candidate's audio, s."""

    @property
    def rise_db(self) -> float:
        """Candidate beyond the reference."""
        return self.candidate_db - self.reference_db


@dataclass(frozen=True, slots=True)
class _Levels:
    """Levels of frames relative to the speech, dB."""

    total: _Array
    """Shape `[frames]`."""

    octaves: _Array
    """Shape `[frames, octaves]`."""

    powers: _Array
    """Those of the octaves, not in dB."""

    speech: float
    """The level that others are relative to, a power."""

    @property
    def quiet(self) -> npt.NDArray[np.bool_]:
        """True where the voice pauses, shape `[frames]`."""
        quiet = np.asarray(self.total <= _QUIET_DB)
        if quiet.sum() < _FEWEST:
            tenth = float(np.quantile(self.total, 0.1))
            quiet = np.asarray(self.total <= min(tenth, _HARDLY_QUIET_DB))
        return quiet

    @property
    def is_sound(self) -> npt.NDArray[np.bool_]:
        """True where there is more than zeros, shape `[frames]`."""
        return np.asarray(self.total > _DIGITAL_DB)


def floor_rise(
    reference: npt.ArrayLike, candidate: npt.ArrayLike, sample_rate: int
) -> float | None:
    """Return by how many decibels the floor of pauses rises in the worst octave above 500 Hz.

    Args:
        reference: Samples, shape `[samples]`.
        candidate: Samples of the same length, of the same timing; of another length, of any.
        sample_rate: That of both, Hz.

    Returns:
        The rise, 0 for identical audio, below 0 where every octave is quieter; None where the
        reference does not pause, or either is silent.
    """
    before, after = np.asarray(reference), np.asarray(candidate)
    floors = compare_floors(before, after, sample_rate, aligned=len(before) == len(after))
    return None if floors is None else floors.rise_db


def floor_noise(
    reference: npt.ArrayLike, candidate: npt.ArrayLike, sample_rate: int
) -> float | None:
    """Return the power that is added to pauses, in shares of their floor, in the worst octave.

    Powers of independent causes add up, which rises in decibels do not; 1 is a rise of 3 dB. As in
    `compare_floors`, a quarter of the quiet frames have as much or more.

    Args:
        reference: Samples, shape `[samples]`; what is not finite counts as zero.
        candidate: Samples of the same length and timing, likewise.
        sample_rate: That of both, Hz.

    Returns:
        The share, in an octave above 500 Hz; None where the reference does not pause, or is silent.
    """
    before, after = _finite(reference), _finite(candidate)
    levels = _levels(before, sample_rate, SILENT_DB)
    if levels is None or levels.quiet.sum() < _FEWEST:
        return None
    added = _octaves(_powers(after - before, sample_rate), sample_rate)[levels.quiet]
    floor, least = levels.powers[levels.quiet], levels.speech * 10.0 ** (SILENT_DB / 10.0)
    return float(np.quantile(added / np.maximum(floor, least), _HIGH, axis=0).max())


def compare_floors(
    reference: npt.ArrayLike,
    candidate: npt.ArrayLike,
    sample_rate: int,
    *,
    aligned: bool,
    silent_db: float = SILENT_DB,
    brief: bool = False,
) -> FloorPair | None:
    """Return the floors of pauses, in the octave above 500 Hz that rises most.

    Where each moment of one is the same moment of the other, frames in which the reference is
    quiet are compared one by one: a quarter of them rises as much or more. Else as large a share
    of the candidate counts as quiet, and the levels are compared that 15 % of the quiet frames have
    at most. Two seeds of a voice differ least there (by up to 1.5 dB in 200 texts of the demo
    voice, by up to 10 dB at the quartile). Hiss that is in pauses alone and louder than soft speech
    may then be missed.

    Args:
        reference: Samples, shape `[samples]`; what is not finite counts as zero.
        candidate: Samples, likewise; of the same length where `aligned`.
        sample_rate: That of both, Hz.
        aligned: True for the same timing.
        silent_db: Level of an octave relative to speech to which lower ones are raised.
        brief: True if noise of 50 ms counts as much as that in a quarter of the quiet frames does,
            where `aligned`: three of its four frames rise as much or more.

    Returns:
        The floors; None where the reference does not pause, or either is silent.
    """
    before, after = (_levels(wave, sample_rate, silent_db) for wave in (reference, candidate))
    if before is None or after is None or before.quiet.sum() < _FEWEST:
        return None
    quiet = np.flatnonzero(before.quiet)
    if aligned:
        places = quiet[before.is_sound[quiet] | after.is_sound[quiet]]
        pairs = before.octaves[places], after.octaves[places]
    else:
        share = len(quiet) / len(before.total)
        places = np.argsort(after.total)[: max(_FEWEST, round(share * len(after.total)))]
        places = places[after.is_sound[places]]
        heard = before.octaves[quiet[before.is_sound[quiet]]]
        floor = silent_db if len(heard) < _FEWEST else np.quantile(heard, _LOW, axis=0)
        pairs = np.broadcast_to(floor, after.octaves[places].shape), after.octaves[places]
    if len(places) < _FEWEST:  # zeros, which are as quiet as can be
        return FloorPair(silent_db, silent_db, float(quiet[0]) * _HOP_S)
    rises = pairs[1] - pairs[0]
    rank = int((_HIGH if aligned else _LOW) * (len(places) - 1))
    ranked = np.argsort(rises, axis=0, kind="stable")[rank : rank + 1]
    if aligned and brief:
        ranked = np.concatenate((ranked, _brief_rises(rises, places)))
    heights = np.take_along_axis(rises, ranked, axis=0)
    where, octave = np.unravel_index(np.argmax(heights), heights.shape)
    worst = ranked[where, octave]
    return FloorPair(
        reference_db=float(pairs[0][worst, octave]),
        candidate_db=float(pairs[1][worst, octave]),
        at_s=float(places[worst]) * _HOP_S,
    )


def _brief_rises(rises: _Array, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the frame with the second smallest rise in each 50 ms and each octave.

    Args:
        rises: Shape `[frames, octaves]`.
        places: Numbers of the frames, shape `[frames]`.

    Returns:
        Rows of `rises`, shape `[times, octaves]`.
    """
    begins = np.flatnonzero(places[_BRIEF - 1 :] - places[: 1 - _BRIEF] == _BRIEF - 1)
    near = rises[begins[:, None] + np.arange(_BRIEF)]
    return begins[:, None] + np.argsort(near, axis=1, kind="stable")[:, _LOWER]


def _levels(wave: npt.ArrayLike, sample_rate: int, silent_db: float) -> _Levels | None:
    """Return the levels of frames; None for silence, for fewer than some frames, or below 2 kHz."""
    samples = _finite(wave)
    window, hop = round(_FRAME_S * sample_rate), round(_HOP_S * sample_rate)
    if len(samples) < window + _FEWEST * hop or sample_rate < 4.0 * _LOWEST_HZ:
        return None
    power = _powers(samples, sample_rate)
    total = power.sum(axis=1)
    loud = total[total > 0.1 * total.mean()]
    if not len(loud):
        return None
    speech = float(loud.mean())
    octaves = _octaves(power, sample_rate)
    return _Levels(
        total=10.0 * np.log10(total / speech + 1e-20),
        octaves=np.maximum(10.0 * np.log10(octaves / speech + 1e-20), silent_db),
        powers=octaves,
        speech=speech,
    )


def _finite(wave: npt.ArrayLike) -> _Array:
    return np.nan_to_num(np.asarray(wave, np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _powers(samples: _Array, sample_rate: int) -> _Array:
    """Return the power spectrum of frames, shape `[frames, bins]`."""
    window, hop = round(_FRAME_S * sample_rate), round(_HOP_S * sample_rate)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    taper = np.hanning(window + 1)[:-1]
    spectrum = np.fft.rfft(frames * (taper / np.sqrt(np.square(taper).sum())), axis=1)
    return np.asarray(np.square(spectrum.real) + np.square(spectrum.imag))


def _octaves(power: _Array, sample_rate: int) -> _Array:
    """Return the power of frames by octave, shape `[frames, octaves]`, of their spectrum."""
    window = round(_FRAME_S * sample_rate)
    starts = [int(edge * window / sample_rate) for edge in octave_edges(sample_rate)]
    return np.asarray(np.add.reduceat(power, starts, axis=1)[:, :-1])


def octave_edges(sample_rate: int) -> list[float]:
    """Return the edges of octaves from 500 Hz on; the last ends at half the rate, or 16 kHz."""
    top = min(sample_rate / 2.0, _HIGHEST_HZ)
    edges = [_LOWEST_HZ]
    while 2.5 * edges[-1] <= top:
        edges.append(2.0 * edges[-1])
    return [*edges, top]
