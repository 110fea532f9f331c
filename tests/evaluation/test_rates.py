"""Exact intervals of rates, by independent arithmetic and by what they cover."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tts_compress.evaluation.intervals import effective_size, paired_test, rate_bound, rate_interval


def _tail(count: int, size: int, rate: float) -> float:
    """Return the probability of at most `count` events of `size`."""
    return sum(math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(count + 1))


def _bound(count: int, size: int, tail: float) -> float:
    """The definition of Clopper and Pearson, by bisection on sums of binomials."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(count, size, middle) > tail else (low, middle)
    return low


@pytest.mark.parametrize(("utterances", "bound"), [(72, 0.0408), (200, 0.0149), (24, 0.1173)])
def test_none_of_many_is_below_a_rate(utterances: int, bound: float) -> None:
    """The rule of three, exactly: the rate at which none is seen in 5 % of evaluations."""
    found = rate_bound([False] * utterances, range(utterances))
    assert found == pytest.approx(bound, abs=5e-5)
    assert (1 - found) ** utterances == pytest.approx(0.05)
    assert rate_bound([False] * utterances, [n // 3 for n in range(utterances)]) == found


@pytest.mark.parametrize(("count", "size"), [(1, 24), (3, 72), (50, 60)])
def test_independent_utterances_have_the_interval_of_clopper_and_pearson(
    count: int, size: int
) -> None:
    hits = [place < count for place in range(size)]
    low, high = rate_interval(hits, range(size))
    assert high == pytest.approx(_bound(count, size, 0.025), rel=1e-6)
    assert low == pytest.approx(1 - _bound(size - count, size, 0.025), rel=1e-6)
    assert rate_bound(hits, range(size)) == pytest.approx(_bound(count, size, 0.05), rel=1e-6)


def test_all_utterances_are_as_certain_as_none() -> None:
    low, high = rate_interval([True] * 72, [n // 3 for n in range(72)])
    assert high == 1.0
    assert low == pytest.approx(1 - _bound(0, 72, 0.025))


def test_seeds_that_agree_count_little_more_than_their_text() -> None:
    """Two of 24 texts have the event with all their seeds: 24 utterances' worth, by hand."""
    texts = [n // 3 for n in range(72)]
    hits = [text < 2 for text in texts]
    rate = 2 / 24
    of_texts = (2 * (3 - 3 * rate) ** 2 + 22 * (3 * rate) ** 2) * 24 / 23 / 72**2
    student = 1.99394 / 2.06866  # 97.5 % of 71 and of 23 degrees of freedom, from a table
    expected = rate * (1 - rate) * 72 / 71 / of_texts * student**2
    assert effective_size(hits, texts) == pytest.approx(expected, rel=1e-4)
    assert 20 < expected < 24
    assert rate_bound(hits, texts) > rate_bound(hits, range(72)) + 0.05


def test_events_spread_evenly_are_no_better_than_independent_ones() -> None:
    texts = [n // 3 for n in range(72)]
    hits = [n % 3 == 0 for n in range(72)]
    assert effective_size(hits, texts) < 72


@pytest.mark.parametrize("share_of_texts", [0.0, 0.5])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.2])
def test_bounds_hold_as_often_as_they_say(rate: float, share_of_texts: float) -> None:
    """Also where half of the texts' seeds agree, if the event is often enough to be seen."""
    random = np.random.default_rng(3)
    texts = [n // 3 for n in range(600)]
    below = 0
    for _ in range(400):
        together = np.repeat(random.random(200) < share_of_texts, 3)
        drawn = np.where(together, np.repeat(random.random(200), 3), random.random(600))
        below += rate_bound((drawn < rate).tolist(), texts) < rate
    assert below / 400 <= 0.075


def test_paired_events_by_hand() -> None:
    """Seven utterances broke and one was mended: nine of 256 outcomes on either side."""
    before = [False] * 7 + [True] * 10
    after = [True] * 7 + [False] + [True] * 9
    assert paired_test(before, after) == pytest.approx(float(Fraction(2 * (1 + 8), 2**8)))
    assert paired_test(after, before) == paired_test(before, after)


def test_models_without_a_difference_are_alike() -> None:
    assert paired_test([True, False], [True, False]) == 1.0
    assert paired_test([True, False], [False, True]) == 1.0


def test_paired_events_raise_few_false_alarms() -> None:
    random = np.random.default_rng(5)
    both = random.random((2, 1000, 100)) < 0.1
    alarms = np.mean([paired_test(*pair) <= 0.05 for pair in both.transpose(1, 0, 2).tolist()])
    assert alarms <= 0.06
