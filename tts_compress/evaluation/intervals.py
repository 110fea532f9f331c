"""Intervals of rates, of their differences, and of ratios of times; the test of paired events.

Differences and ratios are resampled in pairs: Bisani and Ney, "Bootstrap estimates for confidence
intervals in ASR performance evaluation", ICASSP 2004.

The percentile interval of few texts is too narrow: with 24 of them and three seeds 8 % of 95 %
intervals had no zero where nothing had changed. Its percentiles are expanded, as Hesterberg, "What
teachers should know about the bootstrap", The American Statistician 69(4), 2015, section 4.3.
Below `FEWEST_TEXTS` nothing helps: no resample differs where all texts drawn happen to agree.

An interval of what was seen says nothing of what was not. Where utterances lose all words now and
then, its upper end lies below the true loss in 4 to 12 % of evaluations (eval/reports/power.md),
and in 34 % where one text in 25 is lost with all its seeds and 24 were spoken: in two of five such
evaluations none is lost. Studentized and bias-corrected intervals (BCa) miss it as often. So what
bounds a loss is another number, `loss_bounds`.

An event such as a broken utterance is rare. A bootstrap of 72 utterances without one has no width,
and yet their rate is only known to be below 4.1 %. The interval is that of Clopper and Pearson,
"The use of confidence or fiducial limits", Biometrika 26, 1934. Seeds of one text resemble each
other, so utterances count as fewer by the design effect: Korn and Graubard, "Confidence intervals
for proportions with small expected number of positive counts estimated from survey data", Survey
Methodology 24(2), 1998.

Where no utterance has the event, or every one, nothing shows if events keep to texts, and the
design effect is 1: the interval is then of utterances that are independent. For an event that
strikes all seeds of a text, give each text once: of 24 without it, it is below 11.7 %.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tts_compress.errors import needing

_Result = TypeVar("_Result")
_Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]

RESAMPLES = 10_000

FEWEST_TEXTS = 12
"""Texts that an interval takes at least. Of the demo voice's word errors (eval/reports), drawn with
one seed, the interval has no width in 50 % of draws of 4 texts, 19 % of 8, 10 % of 12 and 0.5 % of
24; with three seeds it covers the true change in 58, 83, 90 and 94 %."""

FEWEST_CHANGED = 5
"""Texts that differ, of those that show a direction: where nothing changed, four all get worse, or
all better, in 12 % of evaluations (the test of signs), five in 6 %."""

FEWEST_PROCESSES = 3
"""Pairs of processes that the interval of a ratio of times takes at least."""

_SEED = 20_040_517
_CHUNK = 2_000_000
"""Draws held in memory at once."""

_NORMAL = NormalDist()


def take_turns(runs: Sequence[Callable[[], _Result]], rounds: int) -> list[tuple[_Result, ...]]:
    """Return the results of runs that take turns, round by round.

    What disturbs the machine for a while then disturbs all of them.
    """
    return [tuple(run() for run in runs) for _ in range(rounds)]


def compare_times(
    reference: npt.NDArray[np.float64], candidate: npt.NDArray[np.float64]
) -> tuple[float, tuple[float, float] | None]:
    """Return the geometric mean of the ratios reference over candidate, and its interval.

    It is also the ratio of the two geometric means. Every run counts alike, however long it takes.
    Runs of one process resemble each other, and so do those of one text: the variance of the mean
    logarithm is that among processes and that among texts, less that of single runs, which both
    contain (Cameron, Gelbach and Miller, "Robust inference with multiway clustering", Journal of
    Business and Economic Statistics 29(2), 2011), and at least that among processes. With Student's
    t such intervals of 6 processes and 8 texts hold the true ratio in 95 to 97 % of simulated
    measurements, whichever the runs have in common; runs counted as independent, in 44 to 95 %.

    Args:
        reference: Seconds of each run, positive, shape `[texts, processes]` or `[runs]`.
        candidate: Seconds of the runs that took turns with those, same shape.

    Returns:
        The ratio and its 95 % interval; None of fewer than `FEWEST_PROCESSES`, which show little
        of how far processes spread.
    """
    logarithms = np.atleast_2d(np.log(reference / candidate))
    texts, processes = logarithms.shape
    mean = float(logarithms.mean())
    if processes < FEWEST_PROCESSES:
        return math.exp(mean), None
    of_processes, of_texts = logarithms.mean(0) - mean, logarithms.mean(1) - mean
    variance = float(of_processes @ of_processes) / (processes * (processes - 1))
    if texts > 1:
        rest = logarithms - mean - of_processes - of_texts[:, None]
        among_texts = float(of_texts @ of_texts) / (texts * (texts - 1))
        of_runs = np.square(rest).sum() / ((texts - 1) * (processes - 1) * texts * processes)
        variance += max(0.0, among_texts - float(of_runs))
    half = _student(processes - 1) * math.sqrt(variance)
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def text_interval(differences: _Numbers, tokens: _Numbers) -> tuple[float, float] | None:
    """Return the interval of `paired_interval` where blocks are texts; None of too few."""
    return paired_interval(differences, tokens) if len(tokens) >= FEWEST_TEXTS else None


def paired_interval(differences: _Numbers, tokens: _Numbers) -> tuple[float, float]:
    """Return the 95 % interval of sum(differences) / sum(tokens) over resampled blocks.

    Args:
        differences: Candidate minus reference of each block, such as errors, shape `[B]`.
        tokens: Size of each block, such as transcript tokens, shape `[B]`, positive.
    """
    low, high = paired_intervals(differences[None], tokens[None])[0]
    return float(low), float(high)


def paired_intervals(differences: _Numbers, tokens: _Numbers) -> npt.NDArray[np.float64]:
    """Return the intervals of many comparisons with equally many blocks.

    Where less than `FEWEST_CHANGED` blocks differ, zero is in the interval: that they all differ in
    one direction is chance too often, whatever the resamples are.

    Args:
        differences: As of `paired_interval` for each comparison, shape `[N, B]`.
        tokens: Likewise, shape `[N, B]`.

    Returns:
        Low and high ends, shape `[N, 2]`.
    """
    blocks = tokens.shape[1]
    random = np.random.default_rng(_SEED)

    def draw(rows: int) -> npt.NDArray[np.float64]:
        return _count(random.integers(blocks, size=(rows, blocks)))

    deltas = _reweighted(differences, tokens, draw)
    tail = expanded_tail(blocks)
    ends: npt.NDArray[np.float64] = np.quantile(deltas, (tail, 1 - tail), axis=1).T
    few = np.count_nonzero(differences, axis=1) < FEWEST_CHANGED
    ends[few] = np.stack((np.minimum(ends[few, 0], 0.0), np.maximum(ends[few, 1], 0.0)), axis=1)
    return ends


def text_bound(differences: _Numbers, tokens: _Numbers, utterances: int) -> float | None:
    """Return the bound of `loss_bounds` for one comparison; None of too few texts."""
    if len(tokens) < FEWEST_TEXTS:
        return None
    return float(loss_bounds(differences[None], tokens[None], utterances / len(tokens))[0])


def loss_bounds(differences: _Numbers, tokens: _Numbers, seeds: float) -> npt.NDArray[np.float64]:
    """Return what sum(differences) / sum(tokens) is at most, rare losses included, at 97.5 %.

    It is the quantile of a Bayesian bootstrap of the blocks and one more, which lost as much as the
    worst of them did, and at least all of an utterance: the bound of Gaffke, "Three test statistics
    for a nonparametric one-sided hypothesis on the mean of a nonnegative variable", Mathematical
    Methods of Statistics 14, 2005 (Learned-Miller and Thomas, "A new confidence interval for the
    mean of a bounded random variable", 2020), which for a rate is that of Clopper and Pearson.

    With the demo voice's errors it lies below the true loss in at most 2.4 % of evaluations where 1
    to 4 % of utterances or one text in 25 lose all words. Not where of 24 texts one in 12 is lost
    with all its seeds: none is seen in 12 % of evaluations, and nothing but more texts helps, as a
    bound that allows for it is above 12 points where nothing is lost. Nor in 7 % of evaluations of
    200 texts with three seeds, of which one in 100 is lost with all of them.

    Args:
        differences: As of `paired_intervals`, shape `[N, B]`.
        tokens: Likewise, shape `[N, B]`.
        seeds: Utterances of each block.
    """
    blocks = tokens.shape[1]
    size = tokens.mean(axis=1)
    worst = np.maximum(differences.max(axis=1), size / seeds)
    random = np.random.default_rng(_SEED)
    deltas = _reweighted(
        np.column_stack((differences, worst)),
        np.column_stack((tokens, size)),
        lambda rows: random.standard_exponential((rows, blocks + 1)),
    )
    return np.asarray(np.quantile(deltas, 0.975, axis=1))


def _reweighted(
    differences: _Numbers,
    tokens: _Numbers,
    draw: Callable[[int], npt.NDArray[np.float64]],
) -> npt.NDArray[np.float64]:
    """Return sum(differences) / sum(tokens) with each of `RESAMPLES` drawn weights of blocks.

    Args:
        differences: Shape `[N, B]`.
        tokens: Likewise.
        draw: Returns so many rows of weights, shape `[rows, B]`.

    Returns:
        Shape `[N, RESAMPLES]`.
    """
    comparisons, blocks = tokens.shape
    deltas = np.empty((comparisons, RESAMPLES))
    rows = max(1, _CHUNK // blocks)
    for start in range(0, RESAMPLES, rows):
        weights = draw(min(rows, RESAMPLES - start)).T
        deltas[:, start : start + rows] = (differences @ weights) / (tokens @ weights)
    return deltas


def expanded_tail(blocks: int) -> float:
    """Return the share of resamples beyond each end of a 95 % interval.

    A resample's variance has the factor `(blocks - 1) / blocks`, and few blocks estimate it badly,
    which Student's t accounts for (Abramowitz and Stegun, 26.7.5).
    """
    if blocks < 2:
        return 0.0
    return _NORMAL.cdf(-_student(blocks - 1) * math.sqrt(blocks / (blocks - 1)))


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, from two degrees of freedom on within 3 %."""
    z = _NORMAL.inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _count(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how often each row chose each block, shape `[rows, B]` as `chosen`."""
    rows, blocks = chosen.shape
    places = chosen + blocks * np.arange(rows)[:, None]
    return np.bincount(places.ravel(), minlength=rows * blocks).reshape(rows, blocks).astype(float)


def exact_interval(events: float, others: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson of the share of `events`.

    Args:
        events: Independent trials with the event; not whole where they stand for dependent ones.
        others: Those without it.
        confidence: Probability that the interval holds the share; at least that.
    """
    betaincinv = special().betaincinv
    tail = (1.0 - confidence) / 2.0
    low = betaincinv(events, others + 1.0, tail) if events else 0.0
    high = betaincinv(events + 1.0, others, 1.0 - tail) if others else 1.0
    return float(low), float(high)


def rate_bound(hits: Sequence[bool], texts: Sequence[Hashable]) -> float:
    """Return the exact one-sided bound from above: 4.1 % where none of 72 utterances has the event.

    The rate is below it with a probability of 95 % at least.

    Args:
        hits: True for each utterance with the event; one or more.
        texts: The text of each.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    rate, size = sum(hits) / len(hits), effective_size(hits, texts)
    return exact_interval(size * rate, size * (1.0 - rate), 0.9)[1]


def effective_size(hits: Sequence[bool], texts: Sequence[Hashable]) -> float:
    """Return the number of independent utterances that show a rate as precisely as these.

    It is their number over the design effect, the variance of the rate over texts by that of as
    many independent utterances, and less by what few texts know of a variance (squared ratio of
    Student's quantiles). A design effect below 1 is chance and counts as 1.
    """
    count, rate = len(hits), sum(hits) / len(hits)
    order = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    places = np.array([order[text] for text in texts])
    events, sizes = np.bincount(places, weights=np.array(hits, float)), np.bincount(places)
    clusters = len(sizes)
    if rate in (0.0, 1.0) or clusters in (1, count):
        return float(count)
    residuals = events - rate * sizes
    of_texts = float(residuals @ residuals) * clusters / (clusters - 1) / count**2
    design = of_texts * (count - 1) / (rate * (1.0 - rate))
    many, few = special().stdtrit(np.array((count - 1, clusters - 1)), 0.975)
    return count / max(1.0, design) * float(many / few) ** 2


def paired_test(reference: Sequence[bool], candidate: Sequence[bool]) -> float:
    """Return the probability of events as unequal as these where both models are alike.

    McNemar's exact test, "Note on the sampling error of the difference between correlated
    proportions", Psychometrika 12, 1947: of the utterances that only one model has the event in,
    each is as likely to be either's. Two-sided; 1.0 where the models do not differ.

    Args:
        reference: True for each utterance in which the reference has the event.
        candidate: The same for the candidate. Utterances count as independent: where several seeds
            of a text are spoken, give each text once.
    """
    unequal = [bool(b) for b, a in zip(reference, candidate, strict=True) if bool(a) != bool(b)]
    fewer = min(sum(unequal), len(unequal) - sum(unequal))
    ways = sum(math.comb(len(unequal), count) for count in range(fewer + 1))
    return min(1.0, float(2 * ways / 2 ** len(unequal)))


def special() -> Any:
    """Return scipy's functions of distributions.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    with needing("evaluate"):
        from scipy import special as functions
    return functions
