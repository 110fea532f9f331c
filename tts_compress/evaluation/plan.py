"""The texts and seeds that a claim about words needs, before anything is evaluated.

It follows from word errors that were measured, text by text, on other suites, and from the
difference of word error rates that a number of texts and seeds can show.

Normal approximation: a true difference is found, that is, the 95 % interval lies above zero, with
the probability (power) that a normal variable of the comparison's standard error exceeds 1.96
standard errors. Damage adds to that error, as errors come several at a time. `make prove` simulates
the same with the intervals of the reports.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tts_compress.config import data_file, data_names, read_table
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.pairs import count_audios
from tts_compress.evaluation.result import Evaluation, read_report
from tts_compress.evaluation.suite import FOR_DIGITS, Suite, read_suite

POWER = 0.8
"""Share of evaluations that find a difference, where nothing else is stated."""

_CONFIDENT = NormalDist().inv_cdf(0.975)
"""Standard errors from the middle to an end of a 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Spread of the differences per text: standard deviations, shares of words."""

    text: float
    """Spread that other seeds of the same texts leave: the candidate loses more on some texts."""

    seed: float
    """Spread among seeds of one text; `n` seeds divide its variance by `n`. Zero from one seed,
    which cannot tell it from the texts'."""

    cluster: float
    """Variance that damage adds, over the damage: errors come several at a time."""

    def detectable(self, texts: int, seeds: float) -> float:
        """Return the difference that is found with 80 % power, a share of words.

        The least measured difference `m` whose interval lies above zero is 1.96 standard errors at
        `m`; the one sought is so many standard errors of its own above `m` as the power takes.
        """
        still = (self.text**2 + self.seed**2 / seeds) / texts
        moving = self.cluster / (seeds * texts)
        least = _root(_CONFIDENT**2 * moving, _CONFIDENT**2 * still)
        further = NormalDist().inv_cdf(POWER)
        return least + _root(further**2 * moving, further**2 * (still + moving * least))

    def texts_for(self, difference: float, seeds: int) -> int:
        """Return the smallest number of texts, at least two, that finds a difference."""
        return _smallest(2, lambda texts: self.detectable(texts, seeds) <= difference)

    def seeds_for(self, difference: float, texts: int) -> int | None:
        """Return the smallest number of seeds that finds a difference; None if none does."""
        if self.detectable(texts, math.inf) >= difference:
            return None
        return _smallest(1, lambda seeds: self.detectable(texts, seeds) <= difference)


def measure_spread(
    differences: npt.NDArray[np.int64],
    words: npt.NDArray[np.int64],
    errors: npt.NDArray[np.int64],
) -> Spread:
    """Return the spread of differences.

    A rate is a ratio of sums, so a text's deviation is its errors beyond those that the overall
    difference gives its words, over the mean number of words (Cochran, "Sampling techniques").

    Args:
        differences: Word errors of the candidate minus those of the reference, shape `[B, S]`.
        words: Words of each text, shape `[B]`, two or more texts.
        errors: Word errors of utterances of the reference, any shape: how they cluster.
    """
    seeds = differences.shape[1]
    rate = differences.sum() / (seeds * words.sum())
    deviations = (differences - rate * words[:, None]) / words.mean()
    of_means = float(deviations.mean(1).var(ddof=1))
    within = float(deviations.var(axis=1, ddof=1).mean()) if seeds > 1 else 0.0
    total = int(errors.sum())
    together = float((errors**2).sum() / total) if total else 1.0
    return Spread(
        text=math.sqrt(max(0.0, of_means - within / seeds)),
        seed=math.sqrt(within),
        cluster=together / float(words.mean()),
    )


def spread_of(evaluation: Evaluation) -> Spread | None:
    """Return the spread of an evaluation; None where no difference shows one."""
    texts, seeds = evaluation.suite.texts, len(evaluation.suite.seeds)
    rows = sorted(evaluation.utterances, key=lambda row: (row.index, row.seed))
    if texts < 2 or len(rows) != texts * seeds:
        return None
    differences = np.array([row.added_errors for row in rows]).reshape(texts, seeds)
    words = np.array([row.words for row in rows[::seeds]])
    if not differences.any():
        return None
    return measure_spread(differences, words, np.array([r.reference.word_errors for r in rows]))


def _root(b: float, c: float) -> float:
    """Return the positive root of `x**2 = b * x + c`."""
    return b / 2 + math.sqrt(b**2 / 4 + c)


def _smallest(first: int, suffices: Callable[[int], bool]) -> int:
    """Return the smallest number from `first` on that suffices, as all above it do."""
    enough = first
    while not suffices(enough):
        enough *= 2
    low = max(first, enough // 2)
    return low + bisect_left(range(low, enough), True, key=suffices)


_OF_DEMO = Spread(text=0.029930367134893603, seed=0.07155394384567605, cluster=0.3661798469345956)
"""That of the word errors in `eval/reports/word-errors.json`."""

SEEDS = (1, 3)
"""Numbers of seeds that a plan has a line for; the first alone where only one was measured."""

_FEWEST = 3
"""Transcripts that show a speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The texts that a claim needs with a number of seeds."""

    seeds: int
    texts: int
    recognition_s: float | None
    """Time to recognize them; None where no run on this machine shows the speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The difference that a shipped suite finds."""

    suite: str
    texts: int
    seeds: int
    detectable: float
    suffices: bool
    seeds_needed: int | None
    """Seeds with which it suffices; None if no number does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Everything that finding a difference takes."""

    difference: float
    """Share of words."""

    power: float
    source: str
    """The comparison that the spread was measured in."""

    spread: Spread
    needs: tuple[Need, ...]
    offers: tuple[Offer, ...]

    @property
    def suite(self) -> str | None:
        """The smallest shipped suite that suffices as it is; None if none does."""
        return next((offer.suite for offer in self.offers if offer.suffices), None)


def plan_evaluation(points: float, directory: Path | None = None) -> EvaluationPlan:
    """Return the texts and seeds that find a difference with 80 % power.

    Args:
        points: The difference in percentage points of the word error rate.
        directory: An earlier evaluation, whose spread and speed of recognition count; without one,
            the spread is that of the demo voice and its `int8` on `en-full`.

    Raises:
        EvaluationError: The difference is out of range, or the directory's report is not usable.
    """
    if not 0.01 <= points <= 100:  # NaN, too
        raise EvaluationError(f"cannot plan for {points:g} points; give 0.01 to 100, such as 0.5")
    difference = points / 100
    report = None if directory is None else read_report(directory)
    source, normalizer, spread = _measured(report)
    pace = None if report is None else recognition_pace(report)
    needs = []
    for seeds in SEEDS if spread.seed else SEEDS[:1]:
        texts = spread.texts_for(difference, seeds)
        time = None if pace is None else pace * count_audios(texts, seeds)
        needs.append(Need(seeds=seeds, texts=texts, recognition_s=time))
    return EvaluationPlan(
        difference=difference,
        power=POWER,
        source=source,
        spread=spread,
        needs=tuple(needs),
        offers=tuple(_offer(suite, difference, spread) for suite in _shipped(normalizer)),
    )


def recognition_pace(report: Evaluation) -> float | None:
    """Return the seconds from one transcript to the next in an evaluation.

    Its number of recognizers at a time is in them. None where it made fewer than three.
    """
    spent = report.stages.get("recognize")
    return None if spent is None or spent.steps < _FEWEST else spent.seconds / spent.steps


def _measured(report: Evaluation | None) -> tuple[str, str, Spread]:
    """Return the comparison that is known, its normaliser, and its spread."""
    if report is None:
        return "out/demo-int8 against demo on en-full, 3 seeds", "en-v1", _OF_DEMO
    spread, suite = spread_of(report), report.suite
    if spread is None:
        raise EvaluationError(
            f"the report of '{report.candidate.spec}' shows no spread: its texts are too few, "
            "or both models are transcribed alike; leave --output out to plan by the demo voice"
        )
    names = f"{report.candidate.spec} against {report.reference.spec} on {suite.name}"
    return f"{names}, {formatting.count(len(suite.seeds), 'seed')}", suite.normalizer, spread


def _shipped(normalizer: str) -> Iterator[Suite]:
    """Yield the shipped suites of the same words, the one with the fewest utterances first."""
    # Others are not checked: that takes the packages of their languages.
    tables = {
        name: read_table(data_file("eval/suites", name)) for name in data_names("eval/suites")
    }
    stated = {name: json.loads(table)["normalizer"] for name, table in tables.items()}
    # Other recognizers than a suite's come with the successor of its normaliser.
    same = [name for name, by in stated.items() if normalizer in (by, FOR_DIGITS.get(by))]
    suites = [read_suite(name) for name in same]
    yield from sorted(suites, key=lambda suite: len(suite.utterances) * len(suite.seeds))


def _offer(suite: Suite, difference: float, spread: Spread) -> Offer:
    texts, seeds = len(suite.utterances), len(suite.seeds)
    detectable = spread.detectable(texts, seeds)
    return Offer(
        suite=suite.name,
        texts=texts,
        seeds=seeds,
        detectable=detectable,
        suffices=detectable <= difference or math.isclose(detectable, difference),
        seeds_needed=spread.seeds_for(difference, texts),
    )


def plan_lines(plan: EvaluationPlan) -> list[str]:
    """Return what a claim needs, and which shipped suite suffices."""
    claim = f"{100 * plan.difference:g} points of word error rate"
    lines = [f"To find {claim} in {100 * plan.power:g} % of evaluations:"]
    lines += [f"  {_size(need.texts, need.seeds)}{_time(need)}" for need in plan.needs]
    hint = "" if plan.spread.seed else ", which does not show how far more seeds help"
    lines += [f"Measured: {plan.source}{hint}."]
    lines += [_offer_line(offer) for offer in plan.offers]
    if plan.suite is None:
        lines.append("No shipped suite suffices as it is.")
    else:
        lines.append(f"Suite {plan.suite} suffices.")
    return lines


def _size(texts: int, seeds: int) -> str:
    return f"{texts} texts with {formatting.count(seeds, 'seed')}"


def _time(need: Need) -> str:
    if need.recognition_s is None:
        return ""
    return f", {math.ceil(need.recognition_s / 60)} min of recognition on this machine"


def _offer_line(offer: Offer) -> str:
    line = (
        f"{offer.suite} ({_size(offer.texts, offer.seeds)}) finds "
        f"{formatting.points(offer.detectable)}"
    )
    if offer.suffices:
        return line
    if offer.seeds_needed is None:
        return f"{line}; it has too few texts"
    return f"{line}; it would need {offer.seeds_needed} seeds"
