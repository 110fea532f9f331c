"""Damage that ears notice and averages over utterances do not: where, and how much.

The candidate is judged against the reference, and both against what the reference does with another
seed: what that has, too, is not the candidate's. `health` counts what is broken whatever the
reference sounds like. A new kind is an entry of `KINDS`, a field of `Damage` and a gate.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import paired_test, rate_bound
from tts_compress.evaluation.metric import (
    Audios,
    Figure,
    Headline,
    Metric,
    Record,
    Row,
    compare_pairs,
)
from tts_compress.evaluation.metrics.distortion import shares_noise
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import Evaluation
from tts_compress.numerics.damage import KINDS, Size, Sizes, compare

_WORDS_MARGIN = 0.5
"""Share of its words that an utterance loses."""

MARGINS: Mapping[str, float] = {name: kind.margin for name, kind in KINDS.items()} | {
    "words": _WORDS_MARGIN
}
"""Excess that each kind takes."""


class Finding(Record):
    """One kind of damage over all utterances, in the unit of its kind."""

    utterances: int
    """Number of utterances in which the candidate has damage that the reference does not have."""

    excess: float
    """Candidate beyond the reference, in the worst utterance; 0 where none is beyond it."""

    index: int | None
    """The worst utterance, its seed, and the time in the candidate's audio, s; None where the
    excess is 0. Words have no time."""

    seed: int | None
    at_s: float | None


class Rate(Record):
    """Utterances with damage of any kind."""

    utterances: int
    of: int
    below: float
    """Upper bound of their share, one-sided, 95 % (`intervals.rate_bound`)."""

    other_seeds: int
    """Texts of which the reference with another seed differs from itself as damage does: by its
    own nature, such as with other pauses."""

    p_worse: float
    """Probability that as many more texts of the candidate differ so by chance
    (`intervals.paired_test`); 1 where they are no more."""


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
    """Decibels by which the noise in pauses rises in the worst octave above 500 Hz; this and what
    follows are None in older reports."""

    repetition: Finding | None = None
    """Seconds of sound inside the speech that the reference does not have, such as a stutter."""

    dropped: Finding | None = None
    """Seconds of the reference's sound that are missing inside the speech."""

    truncation: Finding | None = None
    """Seconds of the reference's sound that are missing at the end."""

    runaway: Finding | None = None
    """Seconds of sound behind the reference's end, or a second or more anywhere."""

    length: Finding | None = None
    """Share by which the whole is longer or shorter; of 2 s where it lasts less."""

    level: Finding | None = None
    """Decibels by which 0.4 s of sound are louder or softer."""

    pitch: Finding | None = None
    """Cents by which the voice is higher or lower, in the median; a semitone is 100."""

    burst: Finding | None = None
    """Decibels by which a range of frequencies is louder for 35 ms than anywhere near."""

    hole: Finding | None = None
    """Decibels by which a range of frequencies is softer for 35 ms than anywhere near, or loud
    sound as a whole for 10 ms."""

    onset: Finding | None = None
    """Decibels by which the 45 ms before a sound are louder, such as by an early echo of it."""

    spoilt: Finding | None = None
    """Decibels by which 0.15 s of sound differ beyond the rest, with the same noise."""

    unlike: Finding | None = None
    """Decibels by which 0.3 s of sound differ beyond what other noise does."""

    tremolo: Finding | None = None
    """Decibels by which the loudness sways, trembles, or flutters as a rough voice's does."""

    vibrato: Finding | None = None
    """Cents by which the pitch sways."""

    words: Finding | None = None
    """Share of the words that are misheard beyond any rendering by the reference."""

    rate: Rate | None = None

    @property
    def findings(self) -> Mapping[str, Finding]:
        """Findings by kind, as far as the report has them."""
        return {name: value for name, value in self if isinstance(value, Finding)}

    @property
    def counts(self) -> Mapping[str, int]:
        """Utterances by the kinds of damage that were found."""
        return {name: f.utterances for name, f in self.findings.items() if f.utterances}


def _observe(audios: Audios) -> tuple[Sizes, Sizes]:
    """Return the sizes of the candidate, and of the reference with another seed."""
    sizes = compare(audios.reference, audios.candidate)
    if np.array_equal(audios.other_seed.samples, audios.reference.samples):
        return sizes, dict.fromkeys(KINDS, (0.0, 0.0))
    return sizes, compare(audios.reference, audios.other_seed)


def _lost_words(run: Run) -> list[Size]:
    """Return for each pair the share of words that the candidate loses, and no time.

    A text counts as mishearing-prone as the worst rendering by the reference: with one of its own
    seeds, another, or inaudibly changed. Recognizers lose whole sentences of some texts by chance.
    """
    errors: dict[str, int] = {}
    candidates = []
    for pair in run.pairs:
        edits = {
            role: count_edits(pair.transcript, run.hypotheses[key], "word").errors
            for role, key in pair.audio.items()
            if key in run.hypotheses
        }
        candidates.append(edits.pop("candidate", 0))
        errors[pair.transcript] = max(errors.get(pair.transcript, 0), *edits.values(), 0)
    return [
        (max(0.0, (lost - errors[pair.transcript]) / len(pair.transcript.split())), 0.0)
        for lost, pair in zip(candidates, run.pairs, strict=True)
    ]


def _compute(run: Run) -> Damage:
    candidates, others = zip(*run.observations("damage"), strict=True)
    beyond = {name: _beyond(name, candidates, others, run) for name in KINDS}
    beyond["words"] = _lost_words(run)
    damaged = [
        any(beyond[name][index][0] > margin for name, margin in MARGINS.items())
        for index in range(len(run.pairs))
    ]
    return Damage(
        **{name: _finding(sizes, MARGINS[name], run) for name, sizes in beyond.items()},
        rate=_rate(damaged, candidates, others, run),
    )


def _beyond(
    name: str, candidates: Sequence[Sizes], others: Sequence[Sizes], run: Run
) -> list[Size]:
    """Return the excess of each utterance beyond what the reference's own seeds differ by.

    With the reference's noise an utterance may differ by as much as the text does between seeds, or
    nine in ten texts do. With other noise the candidate is one more seed: an utterance is damaged
    beyond the largest difference between seeds and what chance adds to it, and all of them are if
    their mean is larger for certain. Without another rendering nothing is said of kinds in which
    seeds differ.
    """
    kind, sizes = KINDS[name], np.array([candidate[name][0] for candidate in candidates])
    floors = np.array([other[name][0] for other in others])
    same, alone = _by_noise(run)
    allowed = np.where(kind.differs_by_seed, 0.0, np.maximum(floors, np.quantile(floors, 0.9)))
    most = np.where(alone & kind.differs_by_seed, np.inf, chance_limit(floors))
    allowed = np.where(same, allowed, most)
    apart = compare_pairs(run, np.where(same | alone, np.nan, floors), sizes)
    low = apart.interval[0] if apart is not None and apart.interval is not None else 0.0
    excess = np.maximum(sizes - allowed, np.where(same | alone | (low <= kind.margin), 0.0, low))
    times = [candidate[name][1] for candidate in candidates]
    return list(zip(np.maximum(excess, 0.0).tolist(), times, strict=True))


def chance_limit(floors: npt.NDArray[np.float64]) -> float:
    """Return the size that the largest of as many exceeds by chance in 1 of 40 evaluations.

    Tails of sizes fall exponentially. With the margins added, at most 1 in 20 comparisons of a
    voice with itself (three voices, other noise) found damage of any kind.
    """
    return float(2.0 * floors.max() - np.median(floors))


def _by_noise(run: Run) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which utterances have the reference's noise, and which have no other rendering.

    Utterances of the same timing have it if most do: one whose samples do not correlate there is
    damaged. Most do if their samples correlate, or if the candidate keeps the length in more of
    them than another seed does, by half of all.
    """
    kept, by_seed = (
        np.mean([pair.seconds.get(role) == pair.seconds["reference"] for pair in run.pairs])
        for role in ("candidate", "other_seed")
    )
    shared = shares_noise(run) or kept > by_seed + 0.5
    same = [shared and pair.same_timing for pair in run.observations("signal")]
    alone = [pair.audio.get("other_seed") == pair.audio.get("reference") for pair in run.pairs]
    return np.array(same, bool), np.array(alone, bool)


def _finding(sizes: Sequence[Size], margin: float, run: Run) -> Finding:
    excesses = [excess for excess, _ in sizes]
    worst = int(np.argmax(excesses))
    is_there = excesses[worst] > 0.0
    return Finding(
        utterances=sum(excess > margin for excess in excesses),
        excess=excesses[worst],
        index=run.pairs[worst].index if is_there else None,
        seed=run.pairs[worst].seed if is_there else None,
        at_s=sizes[worst][1] if is_there else None,
    )


def _rate(
    damaged: Sequence[bool], candidates: Sequence[Sizes], others: Sequence[Sizes], run: Run
) -> Rate:
    """Return the rate of damage, and the comparison of texts with the reference's other seeds."""
    texts = list(dict.fromkeys(run.blocks))
    differ = {
        role: {
            text
            for text, sizes in zip(run.blocks, side, strict=True)
            if any(
                sizes[name][0] > kind.margin
                for name, kind in KINDS.items()
                if not kind.differs_by_seed
            )
        }
        for role, side in (("candidate", candidates), ("other", others))
    }
    after, before = ([text in differ[role] for text in texts] for role in ("candidate", "other"))
    return Rate(
        utterances=sum(damaged),
        of=len(damaged),
        below=rate_bound(damaged, run.blocks),
        other_seeds=sum(before),
        p_worse=paired_test(before, after) if sum(after) > sum(before) else 1.0,
    )


def _rows(damage: Damage, evaluation: Evaluation) -> list[Row]:
    counts = damage.counts
    words = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    places = [
        f"{name}: text {finding.index}, seed {finding.seed}, at {formatting.seconds(finding.at_s)}"
        for name, finding in damage.findings.items()
        if finding.utterances
    ]
    share = _share(damage, len(evaluation.utterances))
    return [
        Row(
            label="Damaged utterances",
            candidate=words,
            change="; ".join(places) or f"nothing that the reference does not have: {share}",
            trend="worse" if counts else "same",
            headline=Headline(
                words,
                f"{share}; by kind, beyond the reference's own",
                "heard as a fault of the machine" if counts else "none heard as a fault",
            ),
        )
    ]


def _share(damage: Damage, spoken: int) -> str:
    """Return the rate with its bound, as far as a report has it."""
    rate = damage.rate
    if rate is None:
        return f"of {spoken} spoken"
    bound = formatting.percent(rate.below)
    return f"{rate.utterances} of {rate.of} spoken, so below {bound} with 95 % confidence"


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
            **{
                f"{name}.utterances": Figure(f"utterances with damage of kind {name!r}")
                for name in MARGINS
            },
            "rate.below": Figure("upper bound of damaged utterances", formatting.percent),
            "rate.p_worse": Figure("probability that more damage than of other seeds is chance"),
        },
        terms={
            "Damaged utterances": "those with samples that stand still away from zero (pinned), a "
            "constant offset, samples that do not change inside the speech (frozen), clicks, a "
            "whistle, a pause, noise in the pauses (hiss), sound that is repeated, dropped, "
            "missing at the end (truncation) or goes on behind it (runaway), another length, "
            "level or pitch, noise in the speech (burst) or frequencies that are missing (hole), "
            "sound before a sound (onset), another sound (spoilt, unlike), loudness or pitch "
            "that sways (tremolo, vibrato), or half of its words misheard, where the reference "
            "has none, with this seed and another. What was not seen in so many utterances can "
            "still happen: the bound says how often.",
        },
    ),
)
