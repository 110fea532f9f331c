"""Damage that ears notice in one rendering of a text beside another, by kind.

Averages over utterances do not show it: each kind has a size at the worst moment, and the margin
from which on it is heard as a fault.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.numerics import faults
from tts_compress.numerics.faults import Alignment, Places, Wave, align_audio
from tts_compress.numerics.pauses import compare_floors
from tts_compress.numerics.pitch import pitch_changes
from tts_compress.numerics.spectra import on_time, same_noise, same_timing

_HISS_FROM_DB = -58.0
"""Level of an octave relative to speech: quieter noise is lost in that of a quiet room."""

_RUNAWAY_S = 1.0
"""Further sound of that length is a runaway wherever it is."""

_GAP_S = 0.03
"""Sound that two renderings with the same noise, and those of two seeds, lack of each other."""

_SHORT_S = 2.0
"""Changes of length are shares of at least that: a tenth of a second is no damage anywhere."""

_LIKE_DB = 2.5
"""Distance of 0.3 s of sound that is hardly heard: up to 1.7 dB with INT8 that moves symbols, and
3.0 dB where all is half a frame late."""

_SWAY_DB, _SWAY_CENTS = 0.6, 20.0
"""Sways of loudness and pitch that are hardly heard: up to 0.3 dB and 1.3 cents with INT8; 0.8 dB
and 23 cents where all is late by part of a frame."""

_FLUTTER_S, _FLUTTER_DB = 0.035, 1.3
"""Time from one extreme of a flutter to the next, and its size that is hardly heard: up to 0.3 dB
with INT8; 1.5 dB where all is late by part of a frame."""

_ENOUGH = 40
"""Frames from which on chance hardly moves their median: half a second of voice."""

_SMOOTH_S = 0.06
"""Time over which levels are averaged: frames of two seeds differ from one to the next."""

_PART_S = 0.4
"""Length of the parts whose ups and downs are analysed: beats of 2.5 Hz are told apart."""

_SPEECH_DB, _SOFT = -30.0, 0.2
"""Parts are of speech where at most this share is softer than that, relative to loud speech."""

_ROUGH_HZ = 15.0, 90.0
"""Beats that make a voice rough: slower ones are those of sounds, faster ones are its pitch."""


@dataclass(frozen=True)
class Renderings:
    """A text as a reference and a candidate speak it, at one sample rate."""

    reference: Audio
    candidate: Audio

    @cached_property
    def waves(self) -> tuple[Wave, Wave]:
        """Samples of both; what is not finite is zero or full scale."""
        before, after = (
            np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
            for audio in (self.reference, self.candidate)
        )
        return before, after

    @cached_property
    def alignment(self) -> Alignment:
        """Frames of both that belong together."""
        return align_audio(self.reference, self.candidate)

    @cached_property
    def cents(self) -> tuple[Wave, Wave]:
        """By how many cents the candidate's voice is higher, and the times in it, in seconds."""
        moments = self.alignment.path.astype(np.float64) * self.alignment.hop_s
        return pitch_changes(self.reference, self.candidate, moments)

    @cached_property
    def same_timing(self) -> bool:
        """True if each moment of one is the same moment of the other."""
        return same_timing(self.reference, self.candidate)

    @cached_property
    def same_noise(self) -> bool:
        """True if the samples correlate, too: two seeds of equal length do not."""
        return self.same_timing and same_noise(self.reference, self.candidate)


Size: TypeAlias = tuple[float, float]
"""A size of damage, and its time in the candidate's audio in seconds."""

Sizes: TypeAlias = Mapping[str, Size]
"""By kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of damage, in a unit of its own."""

    size: Callable[[Renderings], Size]
    """Returns how much of it the candidate has beyond the reference."""

    margin: float
    """Size that is damage where it is beyond that of the reference with another seed, too."""

    differs_by_seed: bool = False
    """True if two seeds of an undamaged voice differ as much as damage does."""


def _ranked(find: Callable[[Wave, int], Places], usual: float, both: Renderings) -> Size:
    """Return the largest excess of a candidate's sizes beyond the reference's, largest by largest.

    Its largest size is compared with the reference's largest, its second with the second, and so
    on, so that damage which the reference has, wherever it moved to, is not the candidate's.

    Args:
        find: Returns the sizes in one sound.
        usual: Size that undamaged speech reaches: the reference's count as that where it is less.
        both: The sounds.
    """
    rate = both.reference.sample_rate
    before, after = (sorted(find(wave, rate), reverse=True) for wave in both.waves)
    pairs = zip_longest(before, after, fillvalue=(usual, 0.0))
    beyond = [(size - max(old, usual), at_s) for (old, _), (size, at_s) in pairs]
    return max([(0.0, 0.0), *beyond])


def _added(find: Callable[[Wave, Wave, int], Places], usual: float, both: Renderings) -> Size:
    """Return the largest size of what the candidate adds, beyond the usual; 0 for other noise."""
    if not both.same_noise:
        return 0.0, 0.0
    sizes = find(*both.waves, both.reference.sample_rate)
    return max([(0.0, 0.0), *((size - usual, at_s) for size, at_s in sizes)])


def _clicks(both: Renderings) -> Size:
    return max(
        _ranked(faults.find_clicks, 18.0, both),
        _added(faults.added_clicks, 9.0, both),
    )


def _hole(both: Renderings) -> Size:
    return max(
        both.alignment.range_change(louder=False),
        _added(faults.added_holes, 0.0, both),
    )


def _hiss(both: Renderings) -> Size:
    """Return the decibels by which the floor of pauses rises above what is heard."""
    floors = compare_floors(
        both.reference.samples,
        both.candidate.samples,
        both.reference.sample_rate,
        aligned=both.same_noise,  # a recording may be a little late
        silent_db=_HISS_FROM_DB,
        brief=True,
    )
    return (0.0, 0.0) if floors is None else (max(0.0, floors.rise_db), floors.at_s)


def _gap(
    side: Literal["reference", "candidate"], where: Literal["inside", "end"], both: Renderings
) -> Size:
    """Return the seconds of sound that one side lacks, inside the speech or at its end."""
    gap = both.alignment.gap(side)
    at_end = gap.at_end or (side == "candidate" and gap.seconds >= _RUNAWAY_S)
    if at_end != (where == "end"):
        return 0.0, 0.0
    return max(0.0, gap.seconds - _GAP_S), gap.at_s


def _length(both: Renderings) -> Size:
    """Return the share by which the length changes, at the end."""
    before, after = both.reference.duration_s, both.candidate.duration_s
    return abs(after - before) / max(before, _SHORT_S), after


def _unlike(both: Renderings) -> Size:
    """Return the decibels by which 0.3 s of sound differ, beyond what is hardly heard."""
    size, at_s = both.alignment.unlike()
    return max(0.0, size - _LIKE_DB), at_s


def sway(values: Wave, times_s: Wave) -> tuple[float, float]:
    """Return the median distance from the median, and the time of the largest; 0 for none."""
    if not len(values):
        return 0.0, 0.0
    distances = np.abs(values - np.median(values))
    return float(np.median(distances)) * _trust(values), float(times_s[distances.argmax()])


def _trust(values: Wave) -> float:
    """Return the weight of a median: chance moves it by the inverse root of the values' number."""
    return math.sqrt(min(1.0, len(values) / _ENOUGH))


def _changes(alignment: Alignment) -> tuple[Wave, Wave]:
    """Return by how many dB frames with sound are louder, and their times in s."""
    before, after = (alignment.levels[side][alignment.path[:, side]] for side in (0, 1))
    sound = (before >= faults.LOUDER_DB) & (after >= faults.SOUND_DB)
    return (after - before)[sound], alignment.path[sound, 1] * alignment.hop_s


def level_sway(alignment: Alignment) -> tuple[float, float]:
    """Return by how many dB the loudness sways beside the reference's, and when, in s."""
    changes, times_s = _changes(alignment)
    frames = max(1, round(_SMOOTH_S / alignment.hop_s))
    if len(changes) < frames:
        return 0.0, 0.0
    return sway(np.convolve(changes, np.full(frames, 1.0 / frames), "valid"), times_s)


def flutter(alignment: Alignment) -> tuple[float, float]:
    """Return the median dB by which loudness rises above the moments 35 ms before and after.

    Or falls below them: 10 to 16 times a second, steadily or not, beside the reference's.
    """
    changes, times_s = _changes(alignment)
    frames = max(1, round(_FLUTTER_S / alignment.hop_s))
    bends = changes[frames:-frames] - 0.5 * (changes[: -2 * frames] + changes[2 * frames :])
    near = times_s[2 * frames :] - times_s[: -2 * frames] < (2 * frames + 0.5) * alignment.hop_s
    return sway(bends[near], times_s[frames:-frames][near])


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


def _beats(wave: Wave, rate: int) -> tuple[npt.NDArray[np.float64], Wave]:
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


def _tremolo(both: Renderings) -> Size:
    """Return the decibels by which the loudness sways, slowly or as a rough voice's."""
    rough = roughness(*both.waves, both.reference.sample_rate)
    slow, fast = max(level_sway(both.alignment), rough), flutter(both.alignment)
    size, at_s = max((slow[0] - _SWAY_DB, slow[1]), (fast[0] - _FLUTTER_DB, fast[1]))
    return max(0.0, size), at_s


def _pitch(both: Renderings) -> Size:
    """Return by how many cents the voice is higher or lower, from its first voiced moment on."""
    cents, times_s = both.cents
    if not len(cents):
        return 0.0, 0.0
    return abs(float(np.median(cents))) * _trust(cents), float(times_s[0])


def _vibrato(both: Renderings) -> Size:
    """Return the cents by which the pitch sways, beyond what is hardly heard."""
    size, at_s = sway(*both.cents)
    return max(0.0, size - _SWAY_CENTS), at_s


# Behind each: the largest size in 32 recordings of a reader (LJSpeech), in 200 sentences of the
# demo voice in FP32, and the largest excess there of its INT8 over FP32, which is inaudible. Pauses
# depend on the text, and a steady offset on the voice: those have no usual size.
KINDS: Mapping[str, Kind] = {
    "pinned": Kind(partial(_ranked, faults.find_pinned, 1.5), margin=2.0),  # 0.8, 1.1, 0
    "offset": Kind(partial(_ranked, faults.find_offset, 0.0), margin=0.015),  # 0.001, 0.013, 0.002
    "frozen": Kind(partial(_ranked, faults.find_frozen, 0.5), margin=4.0),  # 0.3, 0.1, 0
    "click": Kind(_clicks, margin=3.0),  # 18.3, 11.1, 0
    "whistle": Kind(partial(_ranked, faults.find_whistles, 2.0), margin=4.0),  # 0.0, 0.5, 0
    "pause": Kind(partial(_ranked, faults.find_pauses, 0.0), margin=0.25),  # 0.65, 0.13, 0.03
    # The largest rise of the demo voice, in 200 texts: with another seed 0.0 dB, with INT8 0.8.
    "hiss": Kind(_hiss, margin=6.0),
    # Between two seeds of the demo voice, and between FP32 and INT8 with `quality="fast"` of that
    # and of two voices that others trained, the largest gap is 0.03 s.
    "repetition": Kind(partial(_gap, "candidate", "inside"), margin=0.03),
    "dropped": Kind(partial(_gap, "reference", "inside"), margin=0.03),
    "truncation": Kind(partial(_gap, "reference", "end"), margin=0.03),
    "runaway": Kind(partial(_gap, "candidate", "end"), margin=0.03),
    "length": Kind(_length, margin=0.05),
    # The same voices have 1.3 dB between seeds, 1.0 dB with INT8.
    "level": Kind(lambda both: both.alignment.level_change(), margin=2.5),
    # 12 texts of the same voices: 2.6 cents between seeds and with INT8; 42 where 3 % higher.
    "pitch": Kind(_pitch, margin=20.0),
    # 16 texts of each: 4.4 dB between seeds of the demo voice, and 4.7 dB with its INT8 of
    # `quality="fast"`; 6.3 dB with that of a voice which fails by distortion, too.
    "burst": Kind(lambda both: both.alignment.range_change(louder=True), margin=8.0),
    # All ranges for 10 ms: 1.7 dB with INT8 of `quality="good"`, 4.6 dB half a millisecond late.
    "hole": Kind(_hole, margin=8.0),
    # 38 texts of a trained voice: 2.1 dB with INT8 of `quality="good"`; 4.3 dB and more where
    # recordings have an echo 30 ms before each sound, 20 dB softer.
    "onset": Kind(partial(_added, faults.added_onsets, 0.0), margin=4.0),
    # 24 texts of each: 0.6 dB with INT8 of `quality="good"`; 1.3 to 4.6 where formants are 12 %
    # higher for 0.3 s, 2.2 to 7.1 where that is whispered.
    "spoilt": Kind(
        lambda both: both.alignment.spoilt() if both.same_noise else (0.0, 0.0), margin=1.5
    ),
    # 10 to 14 texts of the demo voice and of three that others trained: up to 9.7 dB between seeds,
    # 2.1 dB with INT8; 4.2 to 8.8 dB where a text is whispered or has formants 8 % off.
    "unlike": Kind(_unlike, margin=1.0, differs_by_seed=True),
    # 10 to 24 texts of the same voices: 0.5 to 2.1 dB between seeds, and at most 0.5 more than in
    # nine of ten texts; 1.3 to 1.8 dB where the loudness sways by 6 dB, 0.3 with INT8.
    "tremolo": Kind(_tremolo, margin=0.5, differs_by_seed=True),
    # 19 to 94 cents between seeds, at most 6 more than in nine of ten; 45 where by 4 %.
    "vibrato": Kind(_vibrato, margin=10.0, differs_by_seed=True),
}


def compare(reference: Audio, candidate: Audio) -> dict[str, Size]:
    """Return for each kind the candidate's largest excess, and its time in seconds."""
    candidate, late_s = on_time(reference, candidate)
    both = Renderings(reference, candidate)
    sizes = {name: kind.size(both) for name, kind in KINDS.items()}
    return {name: (size, at_s + late_s if size else at_s) for name, (size, at_s) in sizes.items()}
