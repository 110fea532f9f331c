"""The difference of word error rates that a number of texts and seeds can show.

Normal approximation: a true difference is found, that is, the 95 % interval lies above zero, with
the probability (power) that a normal variable of the comparison's standard error exceeds 1.96
standard errors. Damage adds to that error, as errors come several at a time. `make prove` simulates
the same with the intervals of the reports.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tts_compress.evaluation.result import Evaluation

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

    def detectable(self, texts: int, seeds: float, power: float = POWER) -> float:
        """Return the difference that is found with a power, a share of words.

        The least measured difference `m` whose interval lies above zero is 1.96 standard errors at
        `m`; the one sought is so many standard errors of its own above `m` as the power takes.
        """
        still = (self.text**2 + self.seed**2 / seeds) / texts
        moving = self.cluster / (seeds * texts)
        least = _root(_CONFIDENT**2 * moving, _CONFIDENT**2 * still)
        further = NormalDist().inv_cdf(power)
        return least + _root(further**2 * moving, further**2 * (still + moving * least))

    def texts_for(self, difference: float, seeds: int, power: float = POWER) -> int:
        """Return the smallest number of texts, at least two, that finds a difference."""
        return _smallest(2, lambda texts: self.detectable(texts, seeds, power) <= difference)

    def seeds_for(self, difference: float, texts: int, power: float = POWER) -> int | None:
        """Return the smallest number of seeds that finds a difference; None if none does."""
        if self.detectable(texts, math.inf, power) >= difference:
            return None
        return _smallest(1, lambda seeds: self.detectable(texts, seeds, power) <= difference)


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
