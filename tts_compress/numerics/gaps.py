"""Sound that one of two renderings of a text has and the other lacks, in time or in pitch.

The alignment is dynamic time warping of whole log-mel spectra (Sakoe and Chiba, "Dynamic
programming algorithm optimization for spoken word recognition", 1978): sound that is inserted or
missing, at any place and of any length, is a run of frames of one side beside a single frame of the
other.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.numerics.spectra import align, log_mel, window_length

_Array: TypeAlias = npt.NDArray[np.float64]

_LEVEL_DB = -12.0
"""Root mean square of the reference, below full scale, at which both are analysed."""

_SOUND_DB = -35.0
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


@dataclass(frozen=True, slots=True)
class Gap:
    """Sound of one side that the other lacks."""

    seconds: float
    at_s: float
    """Its beginning in the candidate's audio."""

    at_end: bool
    """True if both sides have no sound in common behind it."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Frames of a reference and of a candidate that belong together."""

    path: npt.NDArray[np.intp]
    """Frames of both, shape `[cells, 2]`; steps of 0 or 1."""

    levels: tuple[_Array, _Array]
    """Level of each frame relative to the reference's speech, dB."""

    ranges: tuple[_Array, _Array]
    """Level of each frame in each range of frequencies, shape `[frames, 10]`, dB."""

    hop_s: float

    def gap(self, side: Literal["reference", "candidate"]) -> Gap:
        """Return the longest stretch of sound that one side has and the other lacks."""
        mine = ("reference", "candidate").index(side)
        level, partner = (self.levels[s][self.path[:, s]] for s in (mine, 1 - mine))
        steps = np.diff(self.path, axis=0, prepend=-1)
        sound = level >= _SOUND_DB
        alone = sound & ((steps[:, 1 - mine] == 0) | (partner <= level - _LOST_DB))
        alone &= steps[:, mine] == 1
        score = np.where(alone, 1.0, np.where(sound & (steps[:, mine] == 1), -_PRICE, 0.0))
        begin, end, total = _largest_run(score)
        shared = sound & ~alone & (partner >= _SOUND_DB)
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
        before, after = (sign * side for side in self.ranges)
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

    def level_change(self) -> tuple[float, float]:
        """Return how much louder or softer 0.4 s of sound are at most, dB, and their time in s."""
        before, after = (self.levels[side][self.path[:, side]] for side in (0, 1))
        sound = (before >= _SOUND_DB) & (after >= _SOUND_DB)
        change, frames = (after - before)[sound], round(0.4 / self.hop_s)
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
    path = np.array(align(_distances(*spectra), [0] * len(spectra[0])), np.intp)
    levels = [_levels(audio, len(s), stride) for audio, s in zip(sides, spectra, strict=True)]
    loud = levels[0][levels[0] > 0.1 * levels[0].mean()]
    speech = float(loud.mean()) if len(loud) else 1.0
    before, after = (10.0 * np.log10(level / speech + 1e-20) for level in levels)
    ranges = (_in_ranges(spectra[0]), _in_ranges(spectra[1]))
    return Alignment(path, (before, after), ranges, hop_s * stride)


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


def _levels(audio: Audio, frames: int, stride: int) -> _Array:
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
