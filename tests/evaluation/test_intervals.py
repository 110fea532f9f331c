"""Intervals of differences, ratios and rates: agree with SciPy, and cover what they say."""

import math
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_compress.evaluation.intervals import (
    FEWEST_CHANGED,
    FEWEST_TEXTS,
    compare_times,
    effective_size,
    exact_interval,
    expanded_tail,
    loss_bounds,
    paired_interval,
    paired_intervals,
    paired_test,
    rate_bound,
    text_bound,
)
from tts_compress.evaluation.metrics.error_rates import Edits, compare_rates

_Times: TypeAlias = npt.NDArray[np.float64]


def _edits(errors: int, tokens: int) -> Edits:
    return Edits(substitutions=errors, insertions=0, deletions=0, tokens=tokens)


_ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(5, 15)), min_size=2, max_size=40
)


@settings(max_examples=30)
@given(_ROWS)
def test_identical_edits_have_no_difference_and_no_spread(rows: list[tuple[int, int, int]]) -> None:
    """A model against itself is exactly zero."""
    edits = [_edits(errors, tokens) for errors, _, tokens in rows]
    found = compare_rates(edits, edits, range(len(edits)))
    assert found.delta == 0.0
    assert found.interval == ((0.0, 0.0) if len(edits) >= FEWEST_TEXTS else None)


@settings(max_examples=30)
@given(_ROWS)
def test_the_interval_contains_the_difference_and_mirrors(rows: list[tuple[int, int, int]]) -> None:
    """Swapping the models mirrors the interval."""
    before = [_edits(errors, tokens) for errors, _, tokens in rows]
    after = [_edits(errors, tokens) for _, errors, tokens in rows]
    found = compare_rates(before, after, range(len(rows)))
    swapped = compare_rates(after, before, range(len(rows)))
    if len(rows) < FEWEST_TEXTS:
        assert found.interval is swapped.interval is None
        return
    assert found.interval is not None
    assert swapped.interval is not None
    assert found.interval[0] <= found.delta <= found.interval[1]
    assert found.interval == pytest.approx((-swapped.interval[1], -swapped.interval[0]), abs=1e-12)


def test_agrees_with_scipy() -> None:
    """An independent implementation of the paired percentile bootstrap."""
    from scipy.stats import bootstrap

    random = np.random.default_rng(4)
    differences, tokens = random.integers(-2, 4, 40), random.integers(4, 14, 40)
    oracle = bootstrap(
        (differences, tokens),
        lambda d, t, axis: d.sum(axis) / t.sum(axis),
        paired=True,
        n_resamples=20_000,
        method="percentile",
        confidence_level=1 - 2 * expanded_tail(40),
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = paired_interval(differences, tokens)
    assert found == pytest.approx((oracle.low, oracle.high), abs=0.004)


@pytest.mark.parametrize("blocks", [8, 24, 200])
def test_percentiles_are_expanded_by_students_t(blocks: int) -> None:
    from scipy.stats import norm, t

    student = t.ppf(0.975, blocks - 1) * np.sqrt(blocks / (blocks - 1))
    assert expanded_tail(blocks) == pytest.approx(norm.cdf(-student), rel=0.05)


def test_a_single_block_shows_no_direction() -> None:
    """A benchmark of one clip still has figures."""
    ones = np.ones(1, np.int64)
    assert paired_interval(3 * ones, 2 * ones) == (0.0, 1.5)


def test_few_normal_differences_are_covered_as_by_students_interval() -> None:
    """Plain percentiles of 8 differences hold their mean 89 times of 100."""
    random = np.random.default_rng(11)
    differences = random.normal(size=(2_000, 8))
    low, high = paired_intervals(differences, np.ones((2_000, 8), np.int64)).T
    assert 0.935 <= float(((low <= 0) & (high >= 0)).mean()) <= 0.965


def test_many_comparisons_are_each_as_if_alone() -> None:
    random = np.random.default_rng(6)
    differences, tokens = random.integers(-2, 3, (5, 30)), random.integers(4, 14, (5, 30))
    together = paired_intervals(differences, tokens)
    for row, ends in enumerate(together):
        assert tuple(ends) == paired_interval(differences[row], tokens[row])


def test_a_direction_takes_five_texts_that_differ() -> None:
    """By the test of signs; whatever resamples of fewer say, zero is in the interval."""
    tokens = np.full(12, 10)
    for changed in range(13):
        differences = np.where(np.arange(12) < changed, 3, 0)
        low, high = paired_interval(differences, tokens)
        assert (low > 0.0) == (changed >= FEWEST_CHANGED == 5)
        assert high >= 0.3 * changed / 12
        assert paired_interval(-differences, tokens) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("lost", "texts"), [(0, 24), (3, 40), (10, 200)])
def test_the_bound_of_whole_losses_is_that_of_a_rate(lost: int, texts: int) -> None:
    """An independent oracle: Clopper and Pearson's, one-sided at 97.5 %."""
    from scipy.stats import beta

    differences = np.where(np.arange(texts) < lost, 10, 0)[None]
    bound = loss_bounds(differences, np.full((1, texts), 10), 1.0)[0]
    assert bound == pytest.approx(beta.ppf(0.975, lost + 1, texts - lost), rel=0.03)


def test_the_unseen_loss_is_an_utterance_until_a_larger_one_is_seen() -> None:
    """With three seeds the unseen loss has a third of a text, unless a whole text was lost."""
    tokens = np.full((1, 24), 30)
    none, whole = np.zeros((1, 24), np.int64), np.zeros((1, 24), np.int64)
    whole[0, 0] = 30
    assert loss_bounds(none, tokens, 3.0)[0] == pytest.approx((1 - 0.025 ** (1 / 24)) / 3, rel=0.03)
    assert loss_bounds(whole, tokens, 3.0)[0] == pytest.approx(
        loss_bounds(whole, tokens, 1.0)[0], rel=0.01
    )


def test_rare_losses_are_below_the_bound_and_not_below_the_interval() -> None:
    """A text of 200 with one seed loses all its words now and then."""
    random, rate = np.random.default_rng(7), 0.01
    tokens = np.full((400, 200), 10)
    noise = random.choice((-1, 0, 0, 0, 1), tokens.shape)
    differences = np.where(random.random(tokens.shape) < rate, 10, noise)
    above = loss_bounds(differences, tokens, 1.0) < rate
    assert above.mean() <= 0.04
    assert (paired_intervals(differences, tokens)[:, 1] < rate).mean() > above.mean() + 0.01


def test_too_few_texts_have_no_bound() -> None:
    assert text_bound(np.zeros(11, np.int64), np.full(11, 9), 33) is None
    assert text_bound(np.zeros(12, np.int64), np.full(12, 9), 36) is not None


def test_seeds_of_one_text_stay_together() -> None:
    """Repeating a text four times does not make the evidence four times as good."""
    random = np.random.default_rng(8)
    once = [(_edits(0, 8), _edits(int(e), 8)) for e in random.integers(0, 3, 20)]
    before, after = ([pair[i] for pair in once for _ in range(4)] for i in (0, 1))
    blocks = [index for index in range(20) for _ in range(4)]
    single = compare_rates([a for a, _ in once], [b for _, b in once], range(20))
    assert compare_rates(before, after, blocks).interval == pytest.approx(single.interval)
    independent = compare_rates(before, after, range(80)).interval
    assert single.interval is not None
    assert independent is not None
    assert independent[1] - independent[0] < 0.7 * (single.interval[1] - single.interval[0])


def test_pairs_have_the_same_transcript() -> None:
    """Rates of different texts are not a pair."""
    with pytest.raises(ValueError, match="not a pair"):
        compare_rates([_edits(1, 5)], [_edits(1, 6)], [0])


def _times(seed: int, shape: tuple[int, int], speed: float) -> tuple[_Times, _Times]:
    """Return seconds of runs that took turns on a machine that is disturbed now and then."""
    random = np.random.default_rng(seed)
    texts = random.uniform(0.5, 4.0, (shape[0], 1))
    both = np.exp(random.exponential(0.3, shape))
    reference, candidate = (np.exp(random.normal(0.0, 0.05, shape)) for _ in range(2))
    return texts * speed * both * reference, texts * both * candidate


def test_a_model_is_as_fast_as_itself() -> None:
    """Exactly, and without spread."""
    reference, _ = _times(1, (8, 5), 1.0)
    assert compare_times(reference, reference) == (1.0, (1.0, 1.0))


@settings(max_examples=30)
@given(st.lists(st.tuples(*[st.floats(1e-4, 1e3)] * 2), min_size=3, max_size=20))
def test_the_interval_contains_the_ratio_and_inverts(pairs: list[tuple[float, float]]) -> None:
    """Swapping the models inverts it."""
    reference, candidate = np.array(pairs).T
    ratio, interval = compare_times(reference, candidate)
    inverse, inverted = compare_times(candidate, reference)
    assert interval is not None
    assert inverted is not None
    assert interval[0] * (1 - 1e-12) <= ratio <= interval[1] * (1 + 1e-12)
    assert ratio == pytest.approx(1 / inverse)
    assert interval == pytest.approx((1 / inverted[1], 1 / inverted[0]))


def test_the_interval_of_a_ratio_agrees_with_sums_written_out() -> None:
    """The variance among processes and texts, less that of runs, which is in both."""
    from scipy.stats import t

    reference, candidate = _times(2, (8, 5), 1.6)
    logs = np.log(reference / candidate).tolist()
    mean = sum(map(sum, logs)) / 40
    rows = [sum(row) / 5 - mean for row in logs]
    columns = [sum(row[p] for row in logs) / 8 - mean for p in range(5)]
    runs = sum(
        (logs[i][j] - mean - rows[i] - columns[j]) ** 2 for i in range(8) for j in range(5)
    ) / (7 * 4 * 40)
    of_texts, of_processes = sum(r**2 for r in rows) / 56, sum(c**2 for c in columns) / 20
    half = t.ppf(0.975, 4) * (of_processes + max(0.0, of_texts - runs)) ** 0.5
    _, interval = compare_times(reference, candidate)
    assert interval is not None
    assert np.log(interval) - mean == pytest.approx([-half, half], rel=5e-3)


@pytest.mark.parametrize(
    ("of_process", "of_text", "of_run"),
    [(0.0, 0.0, 0.05), (0.05, 0.0, 0.01), (0.0, 0.05, 0.02), (0.03, 0.05, 0.05)],
)
def test_the_interval_covers_processes_and_texts(
    of_process: float, of_text: float, of_run: float
) -> None:
    """A model is as fast as itself in about 95 % of measurements, whatever its runs share."""
    random = np.random.default_rng(4)
    held = 0
    for _ in range(1000):
        logs = of_process * random.normal(size=6) + of_text * random.normal(size=(8, 1))
        _, interval = compare_times(
            np.exp(logs + of_run * random.normal(size=(8, 6))), np.ones((8, 6))
        )
        held += interval is not None and interval[0] <= 1.0 <= interval[1]
    assert 930 <= held <= 985


def test_runs_are_pairs() -> None:
    """The same times in another order are weaker evidence."""
    reference, candidate = _times(3, (8, 5), 1.6)
    _, paired = compare_times(reference, candidate)
    _, mixed = compare_times(reference, candidate[:, ::-1])
    assert paired is not None
    assert mixed is not None
    assert paired[1] - paired[0] < 0.5 * (mixed[1] - mixed[0])


def test_a_long_text_counts_as_a_short_one() -> None:
    """Twice as fast and half as fast is as fast, however long either text is."""
    ratio, _ = compare_times(np.array([[2.0], [50.0]]), np.array([[1.0], [100.0]]))
    assert ratio == pytest.approx(1.0)


@pytest.mark.parametrize("processes", [1, 2])
def test_few_processes_have_no_interval(processes: int) -> None:
    """However many texts they spoke: nothing shows how far processes spread."""
    ratio, interval = compare_times(np.full((8, processes), 3.0), np.full((8, processes), 2.0))
    assert ratio == pytest.approx(1.5)
    assert interval is None


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


@pytest.mark.parametrize(("count", "size"), [(0, 24), (1, 24), (3, 72), (50, 60), (72, 72)])
def test_independent_utterances_have_the_interval_of_clopper_and_pearson(
    count: int, size: int
) -> None:
    hits = [place < count for place in range(size)]
    low, high = exact_interval(count, size - count)
    assert high == pytest.approx(_bound(count, size, 0.025), rel=1e-6)
    assert low == pytest.approx(1 - _bound(size - count, size, 0.025), rel=1e-6)
    assert rate_bound(hits, range(size)) == pytest.approx(_bound(count, size, 0.05), rel=1e-6)


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
    # A single text shows nothing of others.
    assert effective_size(hits, [0] * 72) == 72


@pytest.mark.parametrize(("rate", "share_of_texts"), [(0.02, 0.0), (0.05, 0.5), (0.2, 0.5)])
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
    assert paired_test([True, False], [True, False]) == 1.0
    assert paired_test([True, False], [False, True]) == 1.0
