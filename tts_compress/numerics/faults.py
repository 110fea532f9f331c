"""Faults that ears notice in a sound, each by its size and its time.

`find_…` look at one sound; `added_…` at two of the same timing, where anything that only one of
them has is seen far below what a single sound shows.

Sound that one of two renderings has and the other lacks, in time or in pitch, is found along their
alignment by dynamic time warping of whole log-mel spectra (Sakoe and Chiba, "Dynamic programming
algorithm optimization for spoken word recognition", 1978): sound that is inserted or missing, at
any place and of any length, is a run of frames of one side beside a single frame of the other.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.numerics.spectra import (
    align,
    frame_distances,
    log_mel,
    power_spectrum,
    window_length,
)

Wave: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = list[tuple[float, float]]
"""Sizes of damage, each with its time in seconds."""

_CONSTANT = 1e-7
"""Neighbours that differ by less are the same sample; a step of 16 bits is 3e-5."""

_PINNED_FROM = 0.02
"""Samples below this share of full scale are in a pause, or cross zero: not pinned."""

_BENDS_DB = -12.0
"""Bends of the sound that hide a click beside them, relative to it."""

_MORE = 2.0
"""Factor by which a candidate bends more than its reference within 2 ms where it has a click."""

STEP_S = 0.0025
"""Time between the levels in which onsets and holes are found."""

_LOUD_DB = -18.0
"""Level relative to the speech from which on sound that goes away for a moment is missed."""

_ONSET_DB, _RISE_DB = -24.0, 20.0
"""An onset reaches this level relative to the speech, that far above what is before it."""

_BEFORE_S, _MASKED_S = 0.06, 0.015
"""An onset hides what is less before it (backward masking: 5 to 20 ms); what is earlier than the
first belongs to other sounds."""

_EARLY_S = 0.005
"""A candidate's sound may begin that much earlier: a level of the reference that late hides it."""

_UNHEARD_DB = -48.0
"""Level relative to the speech that nobody hears shortly before a sound."""

_WHISTLE_FROM_HZ = 1000.0
"""Below, the harmonics of a steady vowel stand out as a whistle does."""


def find_pinned(wave: Wave, rate: int) -> Places:
    """Return milliseconds within each 50 ms in which samples stand still away from zero."""
    level = np.abs(wave[1:])
    flat = (np.abs(np.diff(wave)) <= 1e-3 * level) & (level >= _PINNED_FROM)
    sums, starts = _sums(flat.astype(np.float64), round(0.05 * rate), rate // 1000)
    return _places(sums * 1000.0 / rate, starts / rate)


def find_offset(wave: Wave, rate: int) -> Places:
    """Return the distance from zero of each quarter second's mean, as a share of full scale."""
    size = round(0.25 * rate)
    sums, starts = _sums(wave, size, size // 25)
    return _places(np.abs(sums) / size, starts / rate)


def find_frozen(wave: Wave, rate: int) -> Places:
    """Return the milliseconds of runs of one constant sample inside the speech."""
    quiet, step = _quiet(wave, rate)
    loud = np.flatnonzero(~quiet)
    if not len(loud):
        return []
    still = np.abs(np.diff(wave)) <= _CONSTANT
    # Speech begins and ends within these frames.
    still[: (loud[0] + 1) * step] = still[loud[-1] * step :] = False
    begins, ends = _runs(still & (np.abs(wave[1:]) < _PINNED_FROM))
    return [
        (float(b - a) * 1000.0 / rate, float(a) / rate) for a, b in zip(begins, ends, strict=True)
    ]


def find_clicks(wave: Wave, rate: int) -> Places:
    """Return for each millisecond how far it bends beyond the 10 ms on either side, in dB.

    The second difference is the residual of a prediction by a straight line. Pulses of a voice
    and the noise of a consonant have others like them nearby; a click stands alone.
    """
    bends = _bends(wave, rate)
    # A bend that is small against the loudness of the speech is masked by it.
    floor = 0.05 * _root_mean_square(wave) + 1e-6
    return _beyond(bends, _neighbours(bends) + floor, rate)


def added_clicks(reference: Wave, candidate: Wave, rate: int) -> Places:
    """Return for each millisecond how far the difference bends beyond what is around it, in dB.

    What is around it are the difference, as noise has other bends like it nearby, and what is left
    audible by the candidate's own bends. It counts where the candidate bends more than the
    reference did: other loudness, or a little delay, is no click.
    """
    bends, before, after = (
        _bends(wave, rate) for wave in (candidate - reference, reference, candidate)
    )
    if not len(before):
        return []
    hidden_by = 10.0 ** (_BENDS_DB / 20.0) * _neighbours(after)
    floor = 0.05 * _root_mean_square(reference) + 1e-6
    nearby = np.lib.stride_tricks.sliding_window_view(np.pad(before, 2), 5).max(axis=1)
    bends = np.where(after > _MORE * nearby[: len(after)], bends, 0.0)
    return _beyond(bends, np.maximum(_neighbours(bends), hidden_by) + floor, rate)


def added_onsets(reference: Wave, candidate: Wave, rate: int) -> Places:
    """Return by how much louder the candidate is before each onset of the reference, in dB.

    Of two successive levels the softer counts: a click is none.
    """
    levels, after = _fine_levels(reference, candidate, rate, steps=2)
    begin, end, early = (round(span / STEP_S) for span in (_BEFORE_S, _MASKED_S, _EARLY_S))
    if len(levels) <= begin:
        return []
    before, hiding = (
        np.lib.stride_tricks.sliding_window_view(levels, begin - end + later).max(axis=1)
        for later in (0, early)
    )
    loudest = np.minimum(after[:-1], after[1:])
    heard = np.lib.stride_tricks.sliding_window_view(loudest, begin - end - 1).max(axis=1)
    onsets = np.arange(begin, len(levels))
    quiet = before[onsets - begin]
    rising = (levels[onsets] >= _ONSET_DB) & (levels[onsets] >= quiet + _RISE_DB)
    # The first level that is so loud is the onset; later ones have it before them.
    first = rising & ~np.concatenate(([False], rising[:-1]))
    rises = heard[onsets - begin] - np.maximum(hiding[onsets - begin], _UNHEARD_DB)
    return _places(rises[first], onsets[first] * STEP_S)


def added_holes(reference: Wave, candidate: Wave, rate: int) -> Places:
    """Return by how much softer the candidate is in 10 ms of loud sound, in dB.

    Softer than the reference at the same time and 2.5 ms before and after: a candidate may be a
    little late.
    """
    levels, after = _fine_levels(reference, candidate, rate, steps=4)
    if not len(levels):
        return []
    softest = np.lib.stride_tricks.sliding_window_view(np.pad(levels, 1, "edge"), 3).min(axis=1)
    both = min(len(levels), len(after))
    loud = softest[:both] >= _LOUD_DB
    softer = softest[:both] - after[:both]
    return _places(softer[loud], np.arange(both)[loud] * STEP_S)


def _fine_levels(reference: Wave, candidate: Wave, rate: int, *, steps: int) -> tuple[Wave, Wave]:
    """Return levels about the mean, each of some steps, dB relative to the reference's speech."""
    levels, after = (brief_levels(wave, rate, steps) for wave in (reference, candidate))
    loud = levels[levels > levels.max(initial=-200.0) - 20.0]
    speech = 10.0 * np.log10(np.mean(10.0 ** (loud / 10.0))) if len(loud) else 0.0
    return levels - speech, after - speech


def brief_levels(wave: Wave, rate: int, steps: int) -> Wave:
    """Return the level every 2.5 ms, of that many steps each, about their mean, in dB."""
    starts = (np.arange(int(len(wave) / rate / STEP_S)) * STEP_S * rate).astype(np.intp)
    size = round(steps * STEP_S * rate)
    starts = starts[starts + size <= len(wave)]
    squares, sums = (np.concatenate(([0.0], np.cumsum(part))) for part in (np.square(wave), wave))
    power, mean = ((part[starts + size] - part[starts]) / size for part in (squares, sums))
    return np.asarray(10.0 * np.log10(np.maximum(power - np.square(mean), 1e-20)))


def _bends(wave: Wave, rate: int) -> Wave:
    """Return the largest second difference of each millisecond."""
    bend, block = np.abs(np.diff(wave, 2)), max(1, rate // 1000)
    count = len(bend) // block
    return np.asarray(bend[: count * block].reshape(count, block).max(axis=1, initial=0.0))


def _neighbours(bends: Wave) -> Wave:
    """Return the largest bend in the 3 to 10 ms on either side of each millisecond."""
    if not len(bends):
        return bends
    around = np.lib.stride_tricks.sliding_window_view(np.pad(bends, 10), 21)
    # A click of 2 ms has two edges, and one on that of a millisecond is in the next, too.
    return np.asarray(np.maximum(around[:, :8].max(axis=1), around[:, 13:].max(axis=1)))


def _beyond(bends: Wave, around: Wave, rate: int) -> Places:
    """Return the decibels of each millisecond above what is around it."""
    times_s = np.arange(len(bends)) * max(1, rate // 1000) / rate
    return _places(20.0 * np.log10(bends / around + 1e-6), times_s)


def _root_mean_square(wave: Wave) -> float:
    return float(np.sqrt(np.mean(np.square(wave)))) if len(wave) else 0.0


def find_whistles(wave: Wave, rate: int) -> Places:
    """Return for each half second how far its steadiest spectral line stands out, in dB.

    A line is as far above its neighbours as in four of five of the frames.
    """
    window = 2 * window_length(rate)
    hop = window // 4
    length = max(1, round(0.5 * rate / hop))
    padded = np.pad(wave, (0, max(0, window + (length - 1) * hop - len(wave))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    power = power_spectrum(frames, np.hanning(window))
    level = 10.0 * np.log10(power + 1e-8)  # a full-scale sine is 0 dB
    reach = round(250.0 * window / rate)
    padding = np.pad(level, ((0, 0), (reach, reach)), mode="edge")
    # The lobe of a line is four bins wide: neighbours begin behind it.
    near = np.lib.stride_tricks.sliding_window_view(padding, reach - 3, axis=1).max(axis=2)
    bins = level.shape[1]
    beyond = (level - np.maximum(near[:, :bins], near[:, reach + 4 : reach + 4 + bins]))[
        :, round(_WHISTLE_FROM_HZ * window / rate) :
    ]
    lines = []
    for start in range(0, len(beyond) - length + 1, max(1, length // 2)):
        ordered = np.partition(beyond[start : start + length], length // 5, axis=0)
        lines.append((float(ordered[length // 5].max()), start * hop / rate))
    return lines


def find_pauses(wave: Wave, rate: int) -> Places:
    """Return the seconds of silences inside the speech."""
    quiet, step = _quiet(wave, rate)
    begins, ends = _runs(quiet)
    inside = (begins > 0) & (ends < len(quiet))
    begins, ends = begins[inside], ends[inside]
    return _places((ends - begins) * step / rate, begins * step / rate)


def _places(sizes: Wave, times_s: Wave) -> Places:
    return list(zip(sizes.tolist(), times_s.tolist(), strict=True))


def _sums(values: Wave, size: int, step: int) -> tuple[Wave, npt.NDArray[np.intp]]:
    """Return the sums over windows, and their beginnings; short input is one window."""
    padded = np.concatenate(([0.0], values, np.zeros(max(0, size - len(values)))))
    total = np.cumsum(padded)
    starts = np.arange(0, len(total) - size, max(1, step))
    return total[starts + size] - total[starts], starts


def _quiet(wave: Wave, rate: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which frames of 10 ms are 35 dB below loud speech, and the samples of a frame."""
    step = max(1, round(0.01 * rate))
    count = len(wave) // step
    energy = np.square(wave[: count * step]).reshape(count, step).mean(axis=1)
    return energy <= (np.quantile(energy, 0.9) if count else 0.0) * 10.0**-3.5, step


def _runs(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the beginnings of runs of True, and their ends (exclusive)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return edges[::2], edges[1::2]


_Array: TypeAlias = npt.NDArray[np.float64]

_LEVEL_DB = -12.0
"""Root mean square of the reference, below full scale, at which both are analysed."""

SOUND_DB = -35.0
"""Frames above speech by less than this hold sound."""

_LOST_DB = 25.0
"""A frame that is softer than its partner by as much is silent where that has sound."""

_MOST_CELLS = 4_000_000
"""Pairs of frames that are compared: 23 s beside 23 s; longer audio has longer frames."""

_REST_S = 0.15
"""Sound in common behind the end of one side that is less is chance."""

_PRICE = 0.5
"""Frames by which a run of unmatched frames grows shorter with each matched frame inside it."""

_RANGES = 10
"""Ranges of 8 mel bands, of which each can be louder or softer by itself."""

_NEAR_S = 0.06
"""A range is compared with the loudest or softest that the other side has as near."""

_BRIEF_S = 0.035
"""Time over which the difference is averaged."""

LOUDER_DB, _SPOILT_S, _UNLIKE_S = -25.0, 0.15, 0.3
"""Level relative to the speech of frames that can be spoilt, and the times that are."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Sound of one side that the other lacks."""

    seconds: float
    at_s: float
    """Its beginning in the candidate's audio."""

    at_end: bool
    """True if both sides have no sound in common behind it."""


@dataclass(frozen=True)
class Alignment:
    """Frames of a reference and of a candidate that belong together."""

    levels: tuple[_Array, _Array]
    """Level of each frame relative to the reference's speech, dB."""

    spectra: tuple[_Array, _Array]
    """Log-mel spectra, shape `[frames, 80]`, dB."""

    hop_s: float

    @cached_property
    def path(self) -> npt.NDArray[np.intp]:
        """Frames of both, shape `[cells, 2]`; steps of 0 or 1."""
        before, after = self.spectra
        return np.array(align(_distances(before, after), [0] * len(before)), np.intp)

    def gap(self, side: Literal["reference", "candidate"]) -> Gap:
        """Return the longest stretch of sound that one side has and the other lacks."""
        mine = ("reference", "candidate").index(side)
        level, partner = (self.levels[s][self.path[:, s]] for s in (mine, 1 - mine))
        steps = np.diff(self.path, axis=0, prepend=-1)
        sound = level >= SOUND_DB
        alone = sound & ((steps[:, 1 - mine] == 0) | (partner <= level - _LOST_DB))
        alone &= steps[:, mine] == 1
        score = np.where(alone, 1.0, np.where(sound & (steps[:, mine] == 1), -_PRICE, 0.0))
        begin, end, total = _largest_run(score)
        shared = sound & ~alone & (partner >= SOUND_DB)
        return Gap(
            seconds=total * self.hop_s,
            at_s=float(self.path[begin, 1]) * self.hop_s,
            at_end=int(shared[end:].sum()) * self.hop_s < _REST_S,
        )

    def range_change(self, *, louder: bool) -> tuple[float, float]:
        """Return by how many dB a range of frequencies is louder, or softer, and its time in s.

        Stretches in which both sides go on alike are compared; what only one has is a gap.
        """
        sign = 1.0 if louder else -1.0
        before, after = (sign * _in_ranges(side) for side in self.spectra)
        near = round(_NEAR_S / self.hop_s)
        around = np.pad(before, ((near, near), (0, 0)), mode="edge")
        most = _windows(around, 2 * near + 1).max(axis=-1)
        count = max(1, round(_BRIEF_S / self.hop_s))
        if len(self.path) < count:
            return 0.0, 0.0
        beyond = after[self.path[:, 1]] - most[self.path[:, 0]]
        means = _windows(beyond, count).mean(axis=-1).max(axis=1)
        steps = self.path[count - 1 :] - self.path[: len(self.path) - count + 1]
        means = np.where((steps == count - 1).all(axis=1), means, 0.0)
        worst = int(means.argmax())
        return max(0.0, float(means[worst])), float(self.path[worst, 1]) * self.hop_s

    def spoilt(self) -> tuple[float, float]:
        """Return by how many dB 0.15 s of sound differ beyond the median frame, and their time.

        For sides of the same timing and noise, whose spectra are compared frame by frame; what all
        of the sound has in common, such as another loudness, does not count.
        """
        distances = frame_distances(*self.spectra)
        sound = self.levels[0] >= LOUDER_DB
        frames = max(1, round(_SPOILT_S / self.hop_s))
        if len(distances) < frames or not sound.any():
            return 0.0, 0.0
        beyond = np.where(sound, distances - np.median(distances[sound]), 0.0)
        means = np.convolve(beyond, np.full(frames, 1.0 / frames), "valid")
        return float(means.max()), int(means.argmax()) * self.hop_s

    def unlike(self) -> tuple[float, float]:
        """Return by how many dB 0.3 s of sound differ from what they are aligned with; their time.

        For sides of any timing and noise. Another loudness of the whole does not count.
        """
        before, after = (self.spectra[side][self.path[:, side]] for side in (0, 1))
        sound = self.levels[0][self.path[:, 0]] >= LOUDER_DB
        frames = max(1, round(_UNLIKE_S / self.hop_s))
        if len(self.path) < frames or not sound.any():
            return 0.0, 0.0
        distances = frame_distances(before, after - np.median((after - before)[sound]))
        means = np.convolve(np.where(sound, distances, 0.0), np.full(frames, 1.0 / frames), "valid")
        worst = int(means.argmax())
        return float(means[worst]), float(self.path[worst, 1]) * self.hop_s

    def level_change(self) -> tuple[float, float]:
        """Return how much louder or softer 0.4 s of sound are at most, dB, and their time in s."""
        before, after = (self.levels[side][self.path[:, side]] for side in (0, 1))
        sound = (before >= SOUND_DB) & (after >= SOUND_DB)
        change, frames = (after - before)[sound], max(1, round(0.4 / self.hop_s))
        if len(change) < frames:
            return 0.0, 0.0
        means = np.abs(np.convolve(change, np.full(frames, 1.0 / frames), "valid"))
        worst = int(means.argmax())
        return float(means[worst]), float(self.path[sound][worst, 1]) * self.hop_s


def align_audio(reference: Audio, candidate: Audio) -> Alignment:
    """Return the alignment of two renderings at one sample rate, of any lengths."""
    samples = np.nan_to_num(reference.samples, nan=0.0, posinf=0.0, neginf=0.0)
    power = float(np.mean(np.square(samples, dtype=np.float64))) if len(samples) else 0.0
    gain = 10.0 ** (_LEVEL_DB / 20.0) / np.sqrt(power) if power else 1.0
    sides = [_scaled(audio, gain) for audio in (reference, candidate)]
    spectra = [log_mel(audio) for audio in sides]
    hop_s = window_length(reference.sample_rate) / 4 / reference.sample_rate
    stride = 1
    while len(spectra[0]) * len(spectra[1]) > _MOST_CELLS * stride**2:
        stride += 1
    spectra = [spectrum[::stride] for spectrum in spectra]
    levels = [_frame_powers(audio, len(s), stride) for audio, s in zip(sides, spectra, strict=True)]
    loud = levels[0][levels[0] > 0.1 * levels[0].mean()]
    speech = float(loud.mean()) if len(loud) else 1.0
    before, after = (10.0 * np.log10(level / speech + 1e-20) for level in levels)
    return Alignment((before, after), (spectra[0], spectra[1]), hop_s * stride)


def _in_ranges(spectrum: _Array) -> _Array:
    """Return the mean power in each range of bands, dB, shape `[frames, 10]`."""
    power = 10.0 ** (spectrum / 10.0)
    means = power.reshape(len(power), _RANGES, -1).mean(axis=2)
    return np.asarray(10.0 * np.log10(means))


def _windows(values: _Array, count: int) -> _Array:
    """Return so many frames from each frame on, shape `[windows, ranges, count]`."""
    return np.lib.stride_tricks.sliding_window_view(values, count, axis=0)


def _scaled(audio: Audio, gain: float) -> Audio:
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=0.0, neginf=0.0) * gain
    return replace(audio, samples=samples.astype(np.float32))


def _distances(left: _Array, right: _Array) -> list[_Array]:
    """Return the distances of each frame of one to all of the other."""
    energies = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
    squares = np.maximum(energies - 2.0 * (left @ right.T), 0.0)
    return list(np.sqrt(squares / left.shape[1]))


def _frame_powers(audio: Audio, frames: int, stride: int) -> _Array:
    """Return the power of frames of a log-mel spectrum, in the middle half of their windows."""
    window = window_length(audio.sample_rate)
    hop = window // 4
    sums = np.concatenate(([0.0], np.cumsum(np.square(audio.samples, dtype=np.float64))))
    begins = np.minimum(np.arange(frames) * hop * stride + hop, len(sums) - 1)
    ends = np.minimum(begins + 2 * hop, len(sums) - 1)
    return np.asarray((sums[ends] - sums[begins]) / (2 * hop))


def _largest_run(score: _Array) -> tuple[int, int, float]:
    """Return the begin, end and sum of the run with the largest sum (Kadane's algorithm)."""
    sums = np.concatenate(([0.0], np.cumsum(score)))
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    begin = int(np.argmin(sums[: end + 1]))
    return min(begin, len(score) - 1), end, float(sums[end] - lowest[end])
