"""Exact intervals of the rate of an event among utterances, and the test of paired events.

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
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tts_compress.errors import needing


def rate_interval(
    hits: Sequence[bool], texts: Sequence[Hashable], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the exact two-sided interval of the share of utterances with an event.

    Args:
        hits: True for each utterance with the event; one or more.
        texts: The text of each.
        confidence: Probability that the interval holds the rate; at least that.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    rate, size = sum(hits) / len(hits), effective_size(hits, texts)
    return exact_interval(size * rate, size * (1.0 - rate), confidence)


def exact_interval(events: float, others: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson of the share of `events`.

    Args:
        events: Independent trials with the event; not whole where they stand for dependent ones.
        others: Those without it.
        confidence: As of `rate_interval`.
    """
    betaincinv, _ = _quantiles()
    tail = (1.0 - confidence) / 2.0
    low = betaincinv(events, others + 1.0, tail) if events else 0.0
    high = betaincinv(events + 1.0, others, 1.0 - tail) if others else 1.0
    return float(low), float(high)


def rate_bound(hits: Sequence[bool], texts: Sequence[Hashable], confidence: float = 0.95) -> float:
    """Return the exact one-sided bound from above: 4.1 % where none of 72 utterances has the event.

    Args:
        hits: As of `rate_interval`.
        texts: Likewise.
        confidence: Probability that the rate is below the bound; at least that.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    return rate_interval(hits, texts, 2.0 * confidence - 1.0)[1]


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
    _, stdtrit = _quantiles()
    residuals = events - rate * sizes
    of_texts = float(residuals @ residuals) * clusters / (clusters - 1) / count**2
    design = of_texts * (count - 1) / (rate * (1.0 - rate))
    many, few = stdtrit(np.array((count - 1, clusters - 1)), 0.975)
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


def _quantiles() -> tuple[Any, Any]:
    """Return the quantile functions of the beta and of Student's distribution.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    with needing("evaluate"):
        from scipy.special import betaincinv, stdtrit
    return betaincinv, stdtrit
