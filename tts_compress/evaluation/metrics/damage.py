"""Damage that ears notice and whole-utterance averages do not: where, and how much.

Each detector returns the size of its damage by place. The candidate is judged against the
reference: its largest size against the reference's largest, its second against the second, and so
on, so that damage which the reference has too, wherever it moved to, is not the candidate's.
`health` counts what is broken whatever the reference sounds like.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Audios, Figure, Headline, Metric, Record, Row
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import Evaluation
from tts_compress.numerics.pauses import compare_floors
from tts_compress.numerics.spectra import power_spectrum, same_timing, window_length

Wave: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = list[tuple[float, float]]
"""Sizes of damage, each with its time in seconds."""

_CONSTANT = 1e-7
"""Neighbours that differ by less are the same sample; a step of 16 bits is 3e-5."""

_PINNED_FROM = 0.02
"""Samples below this share of full scale are in a pause, or cross zero: not pinned."""

_HISS_FROM_DB = -58.0
"""Level of an octave relative to speech: quieter noise is lost in that of a quiet room."""

_WHISTLE_FROM_HZ = 1000.0
"""Below, the harmonics of a steady vowel stand out as a whistle does."""


class Finding(Record):
    """One kind of damage over all utterances, in the unit of its kind."""

    utterances: int
    """Number of utterances in which the candidate has damage that the reference does not have."""

    excess: float
    """Candidate beyond the reference, in the worst utterance; 0 where none is beyond it."""

    index: int | None
    """The worst utterance, its seed, and the time in the candidate's audio, s; None where the
    excess is 0."""

    seed: int | None
    at_s: float | None


class Damage(Record):
    """Damage by kind."""

    pinned: Finding
    """Milliseconds within 50 ms in which the sound stands still away from zero, such as at a rail:
    neighbouring samples within 0.1 % of each other."""

    offset: Finding
    """Distance of the mean of 0.25 s from zero, as a share of full scale."""

    frozen: Finding
    """Milliseconds without a change of a single sample, inside the speech."""

    click: Finding
    """Decibels by which a single millisecond bends more than any of the 10 ms on either side."""

    whistle: Finding
    """Decibels by which one line above 1 kHz exceeds all others within 250 Hz, for 0.5 s."""

    pause: Finding
    """Seconds of silence inside the speech."""

    hiss: Finding | None = None
    """Decibels by which the noise in pauses rises in the worst octave above 500 Hz; None in older
    reports."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Utterances by the kinds of damage that were found."""
        return {name: found.utterances for name, found in self if found and found.utterances}


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
    still[: loud[0] * step] = still[(loud[-1] + 1) * step :] = False
    begins, ends = _runs(still & (np.abs(wave[1:]) < _PINNED_FROM))
    return [
        (float(b - a) * 1000.0 / rate, float(a) / rate) for a, b in zip(begins, ends, strict=True)
    ]


def find_clicks(wave: Wave, rate: int) -> Places:
    """Return for each millisecond how far it bends beyond the 10 ms on either side, in dB.

    The second difference is the residual of a prediction by a straight line. Pulses of a voice
    and the noise of a consonant have others like them nearby; a click stands alone.
    """
    bend = np.abs(np.diff(wave, 2))
    block = max(1, rate // 1000)
    count = len(bend) // block
    if not count:
        return []
    highest = bend[: count * block].reshape(count, block).max(axis=1)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(highest, 10), 21)
    # A click on the edge of a millisecond is in the next one, too.
    others = np.maximum(around[:, :9].max(axis=1), around[:, 12:].max(axis=1))
    # A bend that is small against the loudness of the speech is masked by it.
    floor = 0.05 * float(np.sqrt(np.mean(np.square(wave)))) + 1e-6
    sizes = 20.0 * np.log10(highest / (others + floor) + 1e-6)
    return _places(sizes, np.arange(count) * block / rate)


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
    found = []
    for start in range(0, len(beyond) - length + 1, max(1, length // 2)):
        ordered = np.partition(beyond[start : start + length], length // 5, axis=0)
        found.append((float(ordered[length // 5].max()), start * hop / rate))
    return found


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


@dataclass(frozen=True, slots=True)
class Detector:
    """A kind of damage.

    An utterance has it where a size is above the reference's by more than `margin`, the
    reference's counting as `usual` where it is less.
    """

    find: Callable[[Wave, int], Places]
    usual: float
    """Size that undamaged speech reaches."""

    margin: float


# Behind each: the largest size in 32 recordings of a reader (LJSpeech), in 200 sentences of the
# demo voice in FP32, and the largest excess there of its INT8 over FP32, which is inaudible. Pauses
# depend on the text, and a steady offset on the voice: those have no usual size.
DETECTORS: Mapping[str, Detector] = {
    "pinned": Detector(find_pinned, usual=1.5, margin=2.0),  # 0.8, 1.1, 0
    "offset": Detector(find_offset, usual=0.0, margin=0.015),  # 0.001, 0.013, 0.002
    "frozen": Detector(find_frozen, usual=0.5, margin=4.0),  # 0.3, 0.1, 0
    "click": Detector(find_clicks, usual=18.0, margin=3.0),  # 17.2, 9.1, 0
    "whistle": Detector(find_whistles, usual=2.0, margin=4.0),  # 0.0, 0.5, 0
    "pause": Detector(find_pauses, usual=0.0, margin=0.25),  # 0.65, 0.13, 0.03
}

# The largest excess of the demo voice with another seed, in 200 texts, is 0.0 dB, of its INT8 2.9.
_HISS_MARGIN_DB = 6.0

MARGINS: Mapping[str, float] = {
    **{name: detector.margin for name, detector in DETECTORS.items()},
    "hiss": _HISS_MARGIN_DB,
}
"""Excess that each kind takes."""


def compare(reference: Audio, candidate: Audio) -> dict[str, tuple[float, float]]:
    """Return for each kind the candidate's largest excess, and its time in seconds."""
    waves = [
        np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
        for audio in (reference, candidate)
    ]
    rates = (reference.sample_rate, candidate.sample_rate)
    found = {}
    for name, detector in DETECTORS.items():
        before, after = (
            sorted(detector.find(wave, rate), reverse=True)
            for wave, rate in zip(waves, rates, strict=True)
        )
        pairs = zip_longest(before[: len(after)], after, fillvalue=(detector.usual, 0.0))
        beyond = [(size - max(old, detector.usual), at_s) for (old, _), (size, at_s) in pairs]
        found[name] = max([(0.0, 0.0), *beyond])
    return found | {"hiss": _hiss(reference, candidate)}


def _hiss(reference: Audio, candidate: Audio) -> tuple[float, float]:
    """Return the decibels by which the floor of pauses rises above what is heard, and where."""
    rate = reference.sample_rate
    if rate != candidate.sample_rate:
        return 0.0, 0.0
    floors = compare_floors(
        reference.samples,
        candidate.samples,
        rate,
        aligned=same_timing(reference, candidate),
        silent_db=_HISS_FROM_DB,
        brief=True,
    )
    return (0.0, 0.0) if floors is None else (max(0.0, floors.rise_db), floors.at_s)


def _observe(audios: Audios) -> dict[str, tuple[float, float]]:
    return compare(audios.reference, audios.candidate)


def _compute(run: Run) -> Damage:
    observed = run.observations("damage")
    found = {}
    for name, margin in MARGINS.items():
        excesses = [one[name][0] for one in observed]
        worst = int(np.argmax(excesses))
        is_there = excesses[worst] > 0.0
        pair = run.pairs[worst]
        found[name] = Finding(
            utterances=sum(excess > margin for excess in excesses),
            excess=excesses[worst],
            index=pair.index if is_there else None,
            seed=pair.seed if is_there else None,
            at_s=observed[worst][name][1] if is_there else None,
        )
    return Damage(**found)


def _rows(damage: Damage, evaluation: Evaluation) -> list[Row]:
    counts = damage.counts
    words = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    places = [
        f"{name}: text {found.index}, seed {found.seed}, at {formatting.seconds(found.at_s)}"
        for name, found in damage
        if found and found.utterances
    ]
    return [
        Row(
            label="Damaged utterances",
            candidate=words,
            change="; ".join(places) or "nothing that the reference does not have",
            trend="worse" if counts else "same",
            headline=Headline(
                words,
                f"of {len(evaluation.utterances)} spoken, by kind; beyond the reference's own",
                "heard as a fault of the machine" if counts else "none heard as a fault",
            ),
        )
    ]


METRICS = (
    Metric(
        name="damage",
        group="health",
        result=Damage,
        observe=_observe,
        compute=_compute,
        optional=True,  # older reports do not have it
        rows=_rows,
        figures={
            f"{name}.utterances": Figure(f"utterances with damage of kind {name!r}")
            for name in MARGINS
        },
        terms={
            "Damaged utterances": "those with samples that stand still away from zero (pinned), a "
            "constant offset, samples that do not change inside the speech (frozen), clicks, a "
            "whistle, a pause, or noise in the pauses (hiss), where the reference has none.",
        },
    ),
)
