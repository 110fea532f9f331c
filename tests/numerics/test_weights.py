"""Rounding weights, against torch's own quantizers; no two neighbours can overflow 16 bits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tts_compress.numerics.weights import (
    PAIR_LIMIT,
    neighbour_sums,
    round_bias,
    round_blocks,
    round_weight,
)

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


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(weight=_weights)
def test_products_of_neighbours_fit_16_bits(weight: Weight) -> None:
    """255 · (w₁ + w₂) is the largest that two neighbours can add up to, or the smallest."""
    codes, _ = round_weight(weight, 0, multiplied=True)
    sums = neighbour_sums(codes.astype(np.int64))
    assert np.abs(sums).max(initial=0) <= PAIR_LIMIT
    assert (255 * sums <= 2**15 - 1).all()
    assert (255 * sums >= -(2**15)).all()


@pytest.mark.slow
@settings(deadline=None)
@given(weight=_weights)
def test_no_step_is_larger_than_it_has_to_be(weight: Weight) -> None:
    """Channels that cannot overflow keep theirs; the others get the smallest that is enough."""
    _, plain = round_weight(weight, 0, multiplied=False)
    _, scales = round_weight(weight, 0, multiplied=True)
    needed = np.abs(neighbour_sums(weight.astype(np.float64))).max(axis=1, initial=0) / PAIR_LIMIT
    np.testing.assert_allclose(scales, np.maximum(plain, needed), rtol=2e-5)
    assert (scales <= plain * 2).all()


@pytest.mark.slow
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


def _weight(seed: int, shape: tuple[int, ...] = (12, 32, 3)) -> Any:
    weight = np.random.default_rng(seed).standard_t(4, shape).astype(np.float32)
    weight[0] = 0
    weight[1, :16] = 0
    weight[2] = np.abs(weight[2])
    weight[3] = -np.abs(weight[3])
    return weight


def _real(blocks: Any, shape: tuple[int, ...]) -> Any:
    return (blocks.wide() * blocks.scales[:, None]).reshape(shape)


def _searched(row: Any, scale: float) -> list[float]:
    """Return the error of each block with the best factor of all."""
    errors = []
    for block in row.reshape(-1, 16).astype(np.float64):
        found = {}
        for factor in (f for f in range(-8, 8) if f):
            codes = np.clip(np.rint(block / (factor * scale)), -8, 7)
            found[factor] = float(((codes * factor * scale - block) ** 2).sum())
        errors.append(min(found.values()))
    return errors


@pytest.mark.parametrize("seed", range(3))
def test_factors_are_nearly_the_best_of_all(seed: int) -> None:
    weight = _weight(seed)
    blocks = round_blocks(weight, 16)
    rows, real = weight.reshape(12, -1), _real(blocks, (12, 96))
    for row, near, scale in zip(rows, real, blocks.scales, strict=True):
        best = _searched(row, float(scale))
        own = ((row - near).reshape(-1, 16) ** 2).sum(1)
        assert sum(own) <= 1.05 * sum(best) + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_nothing_can_overflow_whatever_the_weights(seed: int) -> None:
    weight = _weight(seed) * 10.0 ** np.arange(-6, 6).reshape(-1, 1, 1).astype(np.float32)
    blocks = round_blocks(weight, 16)
    for part in (blocks.codes, blocks.factors):
        assert part.dtype == np.int8
        assert part.min() >= -8
        assert part.max() <= 7
    assert (blocks.factors != 0).all()
    assert np.isfinite(blocks.scales).all()
    assert (blocks.scales > 0).all()
    wide = blocks.wide().reshape(weight.shape)
    assert wide.dtype == np.int8
    assert np.abs(neighbour_sums(wide.astype(int))).max() <= PAIR_LIMIT
    # Even the extremes of both, side by side.
    assert PAIR_LIMIT >= 2 * 8 * 8
    assert not _real(blocks, weight.shape)[0].any()


def test_largest_weight_of_a_channel_is_hardly_clipped() -> None:
    weight = _weight(0)
    near = _real(round_blocks(weight, 16), weight.shape)
    for row, rounded in zip(weight, near, strict=True):
        peak = np.unravel_index(np.abs(row).argmax(), row.shape)
        assert abs(rounded[peak] - row[peak]) <= 0.14 * abs(row[peak])


def test_it_is_nearer_than_codes_with_a_real_scale_for_each_block() -> None:
    weight = np.random.default_rng(0).standard_normal((48, 192)).astype(np.float32)
    grouped = weight.reshape(48, -1, 16)
    steps = np.abs(grouped).max(2, keepdims=True) / 7
    plain = (np.rint(grouped / steps) * steps).reshape(weight.shape)
    error = ((_real(round_blocks(weight, 16), weight.shape) - weight) ** 2).sum()
    assert error < 0.9 * ((plain - weight) ** 2).sum()


def test_numpy_and_torch_agree_to_the_bit() -> None:
    torch = pytest.importorskip("torch")
    weight = _weight(5)
    ours, theirs = round_blocks(weight, 16), round_blocks(torch.from_numpy(weight), 16)
    for name in ("codes", "factors", "scales"):
        left, right = getattr(ours, name), getattr(theirs, name).numpy()
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    assert np.array_equal(ours.wide(), theirs.wide().numpy())
    assert np.array_equal(ours.steps(), theirs.steps().numpy())
