"""A figure of both models comes with its interval over texts, and is judged by it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tts_compress.evaluation.metric import Paired, Show, compare_pairs


def _run(*texts: int) -> Any:
    return SimpleNamespace(blocks=[*texts])


def test_texts_are_resampled_with_all_their_seeds() -> None:
    """Half of the texts lose 0.4, half gain 0.2, each with two seeds that differ by 0.2."""
    texts = [place for text in range(12) for place in (text, text)]
    found = compare_pairs(_run(*texts), [3.0] * 24, [2.5, 2.7, 3.1, 3.3] * 6)
    assert found is not None
    assert (found.reference, found.candidate) == pytest.approx((3.0, 2.9))
    assert found.delta == pytest.approx(-0.1)
    means = compare_pairs(_run(*range(12)), [3.0] * 12, [2.6, 3.2] * 6)
    assert means is not None
    assert found.interval == pytest.approx(means.interval)


def test_eleven_texts_have_no_interval_whatever_their_seeds() -> None:
    """Their resamples agree too often: an interval without width would look like certainty."""
    texts = [place for text in range(11) for place in (text, text)]
    found = compare_pairs(_run(*texts), [3.0] * 22, [2.6, 3.2] * 11)
    assert found is not None
    assert found.interval is None
    (row,) = Show("x").rows(found)
    assert row.change == "\N{MINUS SIGN}0.10 (95 % interval n/a)"
    assert row.trend == "unknown"


def test_a_pair_without_both_figures_is_left_out() -> None:
    """Text 1 has none at all; the figures of the others stay their own."""
    found = compare_pairs(_run(0, 1, 2, 2), [1.0, np.nan, 2.0, 3.0], [1.5, 9.0, 2.5, np.inf])
    assert found == Paired(reference=1.5, candidate=2.0, delta=0.5, interval=None)
    assert compare_pairs(_run(0), [np.nan], [1.0]) is None


def _value(reference: float, low: float, high: float) -> Paired:
    middle = (low + high) / 2
    candidate = reference + middle
    return Paired(reference=reference, candidate=candidate, delta=middle, interval=(low, high))


@pytest.mark.parametrize(
    ("ends", "trend", "unjudged"),
    [
        ((0.1, 0.2), "better", "unknown"),
        ((-0.2, -0.1), "worse", "unknown"),
        ((-1, 1), "same", "same"),
    ],
)
def test_a_change_is_judged_by_its_interval(
    ends: tuple[float, float], trend: str, unjudged: str
) -> None:
    value = _value(3.0, *ends)
    opposite = {"better": "worse", "worse": "better", "same": "same"}[trend]
    assert Show("x").rows(value)[0].trend == trend
    assert Show("x", better="lower").rows(value)[0].trend == opposite
    assert Show("x", better=None).rows(value)[0].trend == unjudged


@pytest.mark.parametrize(
    ("ends", "closeness", "distance"),
    [((0.1, 0.2), "same", "worse"), ((-0.2, -0.1), "worse", "same"), ((-1, 1), "same", "same")],
)
def test_closer_than_the_floor_is_close_enough(
    ends: tuple[float, float], closeness: str, distance: str
) -> None:
    value = _value(0.9, *ends)
    (row,) = Show("x", "s").floor_rows(value)
    assert (row.trend, row.reference, row.change) == (closeness, "", "floor, other seeds: 0.90 s")
    assert Show("x", better="lower").floor_rows(value)[0].trend == distance


def test_a_reference_without_noise_gives_no_floor() -> None:
    assert Show("x").floor_rows(_value(1.0, -0.1, -0.05))[0].trend == "unknown"
    assert Show("x", better="lower").floor_rows(_value(0.0, 3.0, 4.0))[0].trend == "unknown"


def test_figures_are_printed_in_their_unit() -> None:
    (row,) = Show("x", "%", digits=1, scale=100).rows(_value(0.25, -0.02, 0.04))
    assert (row.reference, row.candidate) == ("25.0 %", "26.0 %")
    assert row.change == "+1.0 (95 % interval \N{MINUS SIGN}2.0 \N{HORIZONTAL ELLIPSIS} +4.0)"
