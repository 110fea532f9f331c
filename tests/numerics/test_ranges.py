"""A stream of values in constant memory, the ranges made of it, and their scales."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Affine, Histogram, choose_range
from tts_compress.recipes.formats import Observer
from tts_compress.recipes.recipe import Calibration

Values: TypeAlias = npt.NDArray[np.float32]


_streams = st.lists(
    arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False)),
    min_size=1,
    max_size=4,
).map(lambda parts: [np.clip(p, np.float32(-3e38), np.float32(3e38)) for p in parts])


def _observe(*parts: Values) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part, float(part.min()), float(part.max()))
    return histogram


@settings(deadline=None)
@given(_streams)
def test_no_value_is_dropped_whatever_its_size(parts: list[Values]) -> None:
    histogram = _observe(*parts)
    values = np.concatenate(parts)
    if histogram.span:
        assert histogram.counts.sum() == values.size
    assert (histogram.low, histogram.high) == (values.min(), values.max())
    assert histogram.counts.shape == Histogram().counts.shape


@pytest.mark.slow
@settings(deadline=None)
@given(_streams)
def test_order_of_a_stream_does_not_matter(parts: list[Values]) -> None:
    forward, backward = _observe(*parts), _observe(*parts[::-1])
    assert forward.span == backward.span
    # A value on the edge of two bins falls to either side when bins are merged.
    assert np.abs(np.cumsum(forward.counts) - np.cumsum(backward.counts)).max() <= sum(
        part.size for part in parts
    )


@settings(deadline=None)
@given(parts=_streams, observer=st.sampled_from(Observer))
def test_range_holds_zero_and_lies_within_what_was_seen(
    parts: list[Values], observer: Observer
) -> None:
    low, high = choose_range(_observe(*parts), Calibration(observer=observer))
    values = np.concatenate(parts)
    assert min(float(values.min()), 0.0) <= low <= 0.0 <= high <= max(float(values.max()), 0.0)


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9, 100.0])
@pytest.mark.parametrize("skew", [0.0, 1.5])
def test_percentile_agrees_with_numpy(percentile: float, skew: float) -> None:
    """To the width of a bin and the value before or after."""
    generator = np.random.default_rng(1)
    size = 200_000
    spread = np.exp(skew * generator.normal(size=size))
    values = (generator.normal(size=size) * spread).astype(np.float32)
    histogram = _observe(*np.array_split(values, 7))
    low, high = choose_range(
        histogram, Calibration(observer=Observer.PERCENTILE, percentile=percentile)
    )
    width = 2 * histogram.span / histogram.counts.size
    tail, one = 1 - percentile / 100, 1.5 / size
    wanted = np.quantile(values, np.clip([tail - one, tail + one], 0, 1))
    assert wanted[0] - width <= low <= wanted[1] + width
    wanted = np.quantile(values, np.clip([1 - tail - one, 1 - tail + one], 0, 1))
    assert wanted[0] - width <= high <= wanted[1] + width


def test_minmax_is_exact_also_when_only_a_sample_is_given() -> None:
    histogram = Histogram()
    histogram.add(np.zeros(3, np.float32), -7.25, 2.5)
    assert choose_range(histogram, Calibration(observer=Observer.MINMAX)) == (-7.25, 2.5)


def _error(values: Values, limits: tuple[float, float]) -> float:
    step = (limits[1] - limits[0]) / 255
    rounded = np.rint((np.clip(values, *limits) - limits[0]) / step) * step + limits[0]
    return float(np.square(values - rounded, dtype=np.float64).mean())


@pytest.mark.parametrize("observer", [Observer.MSE, Observer.ENTROPY])
def test_search_cuts_outliers_off(observer: Observer) -> None:
    values = np.random.default_rng(2).normal(size=100_000).astype(np.float32)
    values[:2] = [40, -40]
    found = choose_range(_observe(values), Calibration(observer=observer))
    assert found[1] < 40
    if observer == Observer.MSE:
        assert _error(values, found) < _error(values, (-40, 40))


def test_mse_is_near_the_best_symmetric_range_by_brute_force() -> None:
    values = np.random.default_rng(3).laplace(size=100_000).astype(np.float32)
    found = choose_range(_observe(values), Calibration(observer=Observer.MSE))
    limit = float(np.abs(values).max())
    best = min(_error(values, (-limit * f, limit * f)) for f in np.linspace(0.3, 1, 50))
    # The search takes one side after the other and stops at 0.4 of the full range.
    assert _error(values, found) <= 1.1 * best


@pytest.mark.parametrize("observer", Observer)
def test_only_zeros_make_an_empty_range(observer: Observer) -> None:
    assert choose_range(_observe(np.zeros(5, np.float32)), Calibration(observer=observer)) == (0, 0)


@pytest.mark.parametrize("observer", Observer)
def test_nothing_seen_is_an_error(observer: Observer) -> None:
    with pytest.raises(QuantizationError, match="calibration saw no values"):
        choose_range(Histogram(), Calibration(observer=observer))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    values = np.array([1.0, value, 2.0], np.float32)
    for low, high in ((float(values.min()), float(values.max())), (1.0, 2.0)):
        with pytest.raises(QuantizationError, match="not finite"):
            Histogram().add(values, low, high)
    # A sample may lack it.
    for low, high in ((value, 2.0), (1.0, value)):
        with pytest.raises(QuantizationError, match="not finite"):
            Histogram().add(values[::2], low, high)


_ends = st.floats(-1e30, 1e30)


@given(ends=st.tuples(_ends, _ends).map(sorted))
def test_range_is_covered_and_zero_is_exact(ends: list[float]) -> None:
    low, high = ends
    code = Affine.spanning(low, high)
    scale, zero = code.scale, code.zero
    first, last = 0, 255
    assert first <= zero <= last
    assert scale > 0
    assert scale == np.float32(scale)
    smallest = float(np.finfo(np.float32).tiny)
    if max(high, 0) - min(low, 0) > 255 * smallest * 2:
        # Rounding the zero point moves the ends by up to half a step.
        slack = 0.51 * scale
        assert (first - zero) * scale <= min(low, 0.0) + slack
        assert (last - zero) * scale >= max(high, 0.0) - slack


def test_known_ranges() -> None:
    assert Affine.spanning(-0.51, 2.04) == Affine(float(np.float32(0.01)), 51)
    assert Affine.spanning(0.5, 2.55) == Affine(float(np.float32(0.01)), 0)
    assert Affine.spanning(-2.55, -1.0) == Affine(float(np.float32(0.01)), 255)
    assert Affine.spanning(0.0, 0.0) == Affine(float(np.float32(1)), 0)
