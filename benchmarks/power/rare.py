"""Losses that are rare, and what bounds, exact intervals and gates say of them.

A comparison takes texts without replacement and the candidate's differences with a random sign for
each text. Then some utterances, or some texts with all their seeds, lose every word that the
reference was understood in. An end or a bound misses where it lies below the true loss, that is,
the rate of the losses times the share of words the reference was understood in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from benchmarks.power.errors import WordErrors
from benchmarks.power.simulate import BATCH, Integers, Numbers, Plan, choose
from benchmarks.sound.analysis import DISTORTION, Values, deal
from tts_compress.evaluation.gates import Gate, Gates
from tts_compress.evaluation.intervals import loss_bounds, paired_intervals, rate_bound

Struck: TypeAlias = Literal["utterances", "texts"]

Row: TypeAlias = dict[str, Any]
"""Figures of a table."""

MISSES = 0.05
"""Accepted share of evaluations whose bound lies below the true loss; nominal are 2.5 %."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of all words at a rate, or, where it strikes `words`, of single ones."""

    struck: Struck | Literal["words"]
    rate: float

    @property
    def name(self) -> str:
        """The loss in words."""
        rate = f"{100 * self.rate:g} %"
        return "none" if not self.rate else f"{rate} of {self.struck}"


NOTHING = Loss("words", 0.0)
UNIFORM = Loss("words", 0.05)
LOSSES = (
    Loss("utterances", 0.01),
    Loss("utterances", 0.02),
    Loss("utterances", 0.04),
    Loss("texts", 0.04),
)
UNSEEN = Loss("texts", 0.08)
"""A loss that 24 texts do not show in 14 % of evaluations; nothing is asked of it."""

PLANS = (Plan(24, 3, 1000), Plan(200, 1, 500), Plan(200, 3, 500))
"""The shipped English suites; `en-full` also with the seeds that its claims take."""


RATE_SIZES = tuple(
    (texts, seeds, rate) for texts, seeds in ((24, 3), (200, 3)) for rate in (0.01, 0.04, 0.1)
)
"""Texts, seeds and the rate of an event."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Drawn comparisons: figures of `report.json`, each with a row for each comparison."""

    truth: float
    delta: Numbers
    ends: Numbers
    bounds: Numbers

    def documents(self) -> Iterator[Mapping[str, Any]]:
        """Yield the part of each report that gates on words read."""
        for delta, ends, bound in zip(self.delta, self.ends, self.bounds, strict=True):
            figures = {"delta": delta, "interval": ends, "bound": bound}
            yield {"wer": {"reference": 0.0} | {k: v.tolist() for k, v in figures.items()}}


def draw(data: WordErrors, plan: Plan, loss: Loss, seed: int = 0) -> tuple[Integers, Integers]:
    """Return differences and words `[N, B]` of the candidate without direction, and with losses."""
    random = np.random.default_rng(seed)
    shape = (plan.comparisons, plan.texts, plan.seeds)
    texts = choose(len(data.words), shape[:2], random)
    order = random.random((*shape[:2], len(data.candidate.seeds))).argsort(axis=2)[..., : shape[2]]
    rows = texts[..., None], order
    words = np.array(data.words)[texts][..., None]
    differences = data.differences()[rows] * random.choice((-1, 1), (*shape[:2], 1))
    if loss.struck == "words":
        differences = differences + random.binomial(np.broadcast_to(words, shape), loss.rate)
    else:
        lost = random.random(shape if loss.struck == "utterances" else (*shape[:2], 1)) < loss.rate
        differences = np.where(lost, words - _understood_errors(data)[rows], differences)
    return differences.sum(2), words[..., 0] * plan.seeds


def _understood_errors(data: WordErrors) -> Integers:
    """Return the reference's errors with the candidate's seeds, shape `[texts, seeds]`."""
    places = [data.reference.seeds.index(seed) for seed in data.candidate.seeds]
    return np.array(data.reference.errors)[:, places]


def compare(data: WordErrors, plan: Plan, loss: Loss, seed: int = 0) -> Comparisons:
    """Return drawn comparisons, judged as the reports are."""
    differences, words = draw(data, plan, loss, seed)
    parts = [
        (differences[start : start + BATCH], words[start : start + BATCH])
        for start in range(0, plan.comparisons, BATCH)
    ]
    share = 1.0
    if loss.struck != "words":
        share -= _understood_errors(data).mean(axis=1).sum() / sum(data.words)
    return Comparisons(
        truth=float(loss.rate * share),
        delta=differences.sum(1) / words.sum(1),
        ends=np.concatenate([paired_intervals(*part) for part in parts]),
        bounds=np.concatenate([loss_bounds(*part, plan.seeds) for part in parts]),
    )


def misses(data: WordErrors, plan: Plan) -> list[Row]:
    """Return how often intervals and bounds miss each loss.

    `below` is the share of intervals whose lower end is above the truth, `above` of those whose
    upper end is below it, `bound` that of such bounds; not `demanded` is what a suite cannot show.
    """
    rows = []
    for loss in (NOTHING, *LOSSES, UNSEEN, UNIFORM):
        drawn = compare(data, plan, loss)
        row = {
            "texts": plan.texts,
            "seeds": plan.seeds,
            "loss": loss.name,
            "points": 100 * drawn.truth,
            "below": float((drawn.ends[:, 0] > drawn.truth).mean()),
            "above": float((drawn.ends[:, 1] < drawn.truth).mean()),
            "bound": float((drawn.bounds < drawn.truth).mean()),
            "median": 100 * float(np.median(drawn.bounds)),
            "demanded": loss != UNSEEN,
        }
        rows.append(row)
    return rows


def passing(data: WordErrors, values: Values, plan: Plan, shipped: list[Gates]) -> list[Row]:
    """Return how often gates pass what lost nothing, and 5 points of words; None for sound.

    Distortion has values of 24 texts alone: renderings of the reference dealt to both sides.
    """
    words = {
        loss: [list(compare(data, plan, loss, seed).documents()) for seed in (0, 1)]
        for loss in (NOTHING, UNIFORM)
    }
    sound = [list(_dealt(values, plan, seed)) for seed in (0, 1)] if plan.texts == 24 else None
    rows = []
    for gates in shipped:
        for gate in gates.gate:
            metric = gate.metric.partition(".")[0]
            uniform = None
            if metric == "wer":
                before = words[NOTHING][1]
                nothing = _share(gate, words[NOTHING][0], before)
                uniform = _share(gate, words[UNIFORM][0], before)
            elif metric == DISTORTION and sound is not None:
                nothing = _share(gate, *sound)
            else:
                continue
            sign = "≤" if gate.direction == "at-most" else "≥"
            row = {
                "gates": gates.name,
                "metric": gate.metric + (", change" if gate.kind == "change" else ""),
                "limit": f"{sign} {gate.limit:g}",
                "texts": plan.texts,
                "seeds": plan.seeds,
                "nothing": nothing,
                "uniform": uniform,
            }
            rows.append(row)
    return rows


def _share(gate: Gate, now: list[Any], before: list[Any]) -> float:
    """Return the share of reports that pass; a change is judged from an independent report."""
    verdicts = [gate.passes(gate.value(*both)) for both in zip(now, before, strict=True)]
    return sum(verdicts) / len(verdicts)


def _dealt(values: Values, plan: Plan, seed: int) -> Iterator[Mapping[str, Any]]:
    random = np.random.default_rng(seed)
    chosen = choose(len(values.takes), (plan.comparisons, plan.texts), random)
    sums = deal(values, DISTORTION, chosen, random)
    assert sums is not None, "values have takes"
    units = np.array(values.units[DISTORTION])[chosen]
    for value, ends in zip(sums.sum(1) / units.sum(1), paired_intervals(sums, units), strict=True):
        yield {DISTORTION: {"value": float(value), "interval": ends.tolist()}}


def rate_misses(texts: int, seeds: int, rate: float, evaluations: int = 1000) -> Row:
    """Return how often the exact bound of a rate lies below it; nominal are 5 %.

    Each utterance has the event by itself (`independent`), or all seeds of a text (`together`).
    """
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(texts), seeds).tolist()
    shares = []
    for width in (seeds, 1):
        events = random.random((evaluations, texts, width)) < rate
        rows = np.broadcast_to(events, (evaluations, texts, seeds)).reshape(evaluations, -1)
        bounds = [rate_bound(row, labels) for row in rows.tolist()]
        shares.append(sum(bound < rate for bound in bounds) / evaluations)
    size = {"texts": texts, "seeds": seeds, "rate": rate}
    return size | {"independent": shares[0], "together": shares[1]}
