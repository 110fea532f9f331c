"""Four-bit blocks against a search one block at a time, and what integer kernels ask of them."""

from typing import Any

import numpy as np
import pytest

from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums, round_blocks


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
