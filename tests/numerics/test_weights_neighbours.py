"""No two neighbours' codes can overflow 16 bits, whatever the weights and the activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums, round_weight

if TYPE_CHECKING:
    Weight = npt.NDArray[np.float32]

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
