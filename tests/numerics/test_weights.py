"""Rounding weights, against torch's own quantizers; no two neighbours can overflow 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums, round_bias, round_weight

if TYPE_CHECKING:
    Weight = npt.NDArray[np.float32]


_weights = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=4, max_side=4),
    elements=st.floats(-(2.0**99), 2.0**99, width=32),
)


@settings(deadline=None)
@given(weight=_weights, multiplied=st.booleans(), data=st.data())
def test_error_is_at_most_half_a_scale(
    weight: npt.NDArray[np.float32], multiplied: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, weight.ndim - 1))
    integers, scales = round_weight(weight, axis, multiplied=multiplied)
    assert integers.dtype == np.int8
    assert integers.shape == weight.shape
    assert np.abs(integers.astype(int)).max() <= 127
    assert scales.shape == (weight.shape[axis],)
    assert scales.dtype == np.float32
    assert (scales > 0).all()
    shape = [1] * weight.ndim
    shape[axis] = -1
    wide = scales.astype(np.float64).reshape(shape)
    assert (np.abs(integers * wide - weight) <= wide * (0.5 + 1e-4)).all()


@pytest.mark.parametrize(("shape", "axis"), [((16, 8, 3), 0), ((8, 16, 4), 1), ((32, 24), 1)])
def test_integers_agree_with_torch(shape: tuple[int, ...], axis: int) -> None:
    """Except near the middle of two steps, as torch multiplies by the inverse of the scale."""
    torch = pytest.importorskip("torch")
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    integers, scales = round_weight(weight, axis, multiplied=False)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    arguments: tuple[Any, ...] = (torch.from_numpy(weight), torch.from_numpy(scales))
    theirs = torch.quantize_per_channel(*arguments, zeros, axis, torch.qint8).int_repr().numpy()
    difference = np.abs(integers.astype(int) - theirs)
    assert difference.max() <= 1
    assert difference.mean() < 1e-3
    fake = torch.fake_quantize_per_channel_affine(*arguments, zeros.int(), axis, -127, 127)
    shape_of_scales = [-1 if i == axis else 1 for i in range(len(shape))]
    ours = integers * scales.reshape(shape_of_scales)
    assert np.abs(ours - fake.numpy()).mean() < 1e-3 * scales.mean()


def test_every_channel_has_its_own_scale() -> None:
    weight = np.array([[1.0, -2.0], [0.015, 0.02], [0.0, 0.0]], np.float32)
    integers, scales = round_weight(weight, 0, multiplied=False)
    np.testing.assert_allclose(scales, [2 / 127, 0.02 / 127, 1], rtol=1e-6)
    assert integers.tolist() == [[64, -127], [95, 127], [0, 0]]


# Sums of neighbours at and around halves of a step, where both may be rounded up.
_near_halves = st.builds(
    lambda steps, off: float(np.float32(steps / 2 * (1 + off))),
    st.integers(-256, 256),
    st.floats(-1e-6, 1e-6),
)
_weights = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=3, max_side=7), elements=_near_halves
)


def test_which_weights_are_neighbours() -> None:
    """Channels of a tap two by two; of an odd number all that follow each other, tap after tap."""
    even = np.array([[[1, 100], [2, 200], [4, 400], [8, 800]]])  # [1, 4 inputs, 2 taps]
    assert neighbour_sums(even).tolist() == [[3, 12, 300, 1200]]
    odd = np.array([[[1, 100], [2, 200], [4, 400]]])
    assert neighbour_sums(odd).tolist() == [[3, 6, 104, 300, 600]]
    assert neighbour_sums(np.array([[1, 2, 4, 8]])).tolist() == [[3, 12]]
    assert neighbour_sums(np.array([[5]])).shape == (1, 0)


@settings(deadline=None, max_examples=200)
@given(weight=_weights)
def test_products_of_neighbours_fit_16_bits(weight: Weight) -> None:
    """255 · (w₁ + w₂) is the largest that two neighbours can add up to, or the smallest."""
    codes, _ = round_weight(weight, 0, multiplied=True)
    sums = neighbour_sums(codes.astype(np.int64))
    assert np.abs(sums).max(initial=0) <= PAIR_LIMIT
    assert (255 * sums <= 2**15 - 1).all()
    assert (255 * sums >= -(2**15)).all()


@settings(deadline=None)
@given(weight=_weights)
def test_no_step_is_larger_than_it_has_to_be(weight: Weight) -> None:
    """Channels that cannot overflow keep theirs; the others get the smallest that is enough."""
    _, plain = round_weight(weight, 0, multiplied=False)
    _, scales = round_weight(weight, 0, multiplied=True)
    needed = np.abs(neighbour_sums(weight.astype(np.float64))).max(axis=1, initial=0) / PAIR_LIMIT
    np.testing.assert_allclose(scales, np.maximum(plain, needed), rtol=2e-5)
    assert (scales <= plain * 2).all()


@settings(deadline=None)
@given(weight=_weights, multiplied=st.booleans(), axis=st.integers(0, 1))
def test_torch_rounds_to_the_same_codes(weight: Weight, multiplied: bool, axis: int) -> None:
    torch = pytest.importorskip("torch")
    from tts_compress.numerics.weights import round_weight

    codes, scales = round_weight(weight, axis, multiplied=multiplied)
    theirs = round_weight(torch.from_numpy(weight), axis, multiplied=multiplied)
    np.testing.assert_array_equal(theirs[0].numpy(), codes)
    np.testing.assert_array_equal(theirs[1].numpy(), scales)


def test_a_bias_is_the_nearest_number_of_steps_of_the_accumulator() -> None:
    bias, scales = np.array([0.6, -0.6, 0.4, 1e30], np.float32), np.array([1.0, 1.0, 0.25, 1e-3])
    assert round_bias(bias, scales).tolist() == [1, -1, 2, 2**31 - 1]
