"""Rounding of weights to 8 bits, to 4 in blocks or one input after another (GPTQ), and of biases.

x86 processors without VNNI multiply u8 activations with s8 weights by `vpmaddubsw`, which adds the
products of two neighbouring inputs in 16 bits and saturates. With activations up to 255 the sum
stays within ±32,767 if and only if |w₁ + w₂| ≤ 128: weights of opposite sign, each at most 127,
always keep that. Wherever codes do, results are exact, whatever the activations.

Neighbours, as the kernels of onnxruntime 1.31 (MLAS), fbgemm and oneDNN in torch 2.13 show them
(`tests/numerics/test_kernels.py`, `tests/onnx/quantize/test_recurrent.py`): MLAS and fbgemm take
the inputs of an output two by two along the row that is summed up, taps outermost and channels
innermost; oneDNN's convolutions take the channels of each tap two by two. Both are the same where
channels are even in number. Where they are odd, rows also begin at either parity, so every two that
follow each other count as neighbours.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Float32: TypeAlias = npt.NDArray[np.float32]
ArrayT = TypeVar("ArrayT", "npt.NDArray[Any]", "Tensor")

CODE_LIMIT = 127
"""The largest magnitude of an 8-bit weight's code; symmetric, so -128 is not used."""

REMAINDERS = 16
"""Steps of 12 bits in a step of 8: the remainder has four bits."""

PAIR_LIMIT = 128
"""The largest magnitude of the sum of two neighbours' codes: 255 · 129 overflows 16 bits."""

PAIR_SPAN = 127.999
"""Steps that the sum of two real neighbours may take. Just less than `PAIR_LIMIT`: then both cannot
be rounded up past it, and the error of dividing in FP32 is far smaller than what is left."""


def largest_code(remainders: int) -> int:
    """Return the largest code of 8 bits with one of so many remainders."""
    return CODE_LIMIT * remainders + remainders // 2 - 1


def neighbour_sums(weight: ArrayT) -> ArrayT:
    """Return the sums of the weights that kernels multiply together.

    Args:
        weight: Shape `[outputs, inputs, ...]`, taps behind the inputs of each group, an array of
            numpy or torch. Codes have to be in a type that holds their sums.

    Returns:
        Shape `[outputs, pairs]`; there are none where an output has a single weight.
    """
    outputs, inputs = weight.shape[:2]
    rows = weight.reshape(outputs, inputs, -1).swapaxes(1, 2).reshape(outputs, -1)
    step = 2 - inputs % 2  # every two, or of an odd number of inputs every two that follow
    sums: ArrayT = rows[:, :-1:step] + rows[:, 1::step]
    return sums


def round_weight(weight: ArrayT, axis: int, *, multiplied: bool) -> tuple[ArrayT, ArrayT]:
    """Round a weight symmetrically, with one scale per output channel.

    Args:
        weight: FP32, an array of numpy or torch, shape `[..., C, ...]` with the `C` output
            channels on `axis`; without it, the first axis is that of the inputs.
        axis: The channel axis.
        multiplied: True if integer kernels multiply the codes with activations. Then a channel
            whose neighbours could overflow `vpmaddubsw` gets a larger scale, by just what it takes.

    Returns:
        int8 codes of the weight's shape in [-127, 127], and scales `[C]`, such that
        `codes · scales` differs from the weight by at most half a scale.
    """
    # Every function used here has the same name and meaning in numpy and torch.
    xp: Any = np if isinstance(weight, np.ndarray) else sys.modules["torch"]
    channels_first = xp.moveaxis(weight, axis, 0)
    rows = channels_first.reshape(len(channels_first), -1)
    scales = xp.amax(abs(rows), 1) / CODE_LIMIT
    sums = neighbour_sums(channels_first) if multiplied else rows[:, :0]
    if sums.shape[1]:
        scales = xp.maximum(scales, xp.amax(abs(sums), 1) / PAIR_SPAN)
    scales = usable_scales(scales)
    steps = by_axis(scales, axis, weight.ndim)
    codes = xp.clip(xp.round(weight / steps), -CODE_LIMIT, CODE_LIMIT)
    return xp.asarray(codes, dtype=xp.int8), scales


def round_in_parts(
    weight: npt.NDArray[np.float64], axis: int, remainders: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Round a weight to codes of 8 bits with one of so many remainders; return codes, scales."""
    largest = largest_code(remainders)
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    scales = usable_scales(np.abs(rows).max(1) / largest)
    steps = by_axis(scales, axis, weight.ndim)
    return np.rint(weight / steps).clip(-largest, largest), scales


def by_axis(scales: ArrayT, axis: int, axes: int) -> ArrayT:
    """Return scales in the shape in which they multiply an array along one of its axes."""
    shaped: ArrayT = scales.reshape([-1 if dimension == axis else 1 for dimension in range(axes)])
    return shaped


def usable_scales(scales: ArrayT) -> ArrayT:
    """Return scales that a weight can be divided by, an array of numpy or torch."""
    xp: Any = np if isinstance(scales, np.ndarray) else sys.modules["torch"]
    # A channel of zeros needs some scale; a subnormal one would be flushed to zero.
    smallest = float(np.finfo(np.float32).tiny)
    usable: ArrayT = xp.where(scales > 0, xp.clip(scales, smallest, None), xp.ones_like(scales))
    return usable


_LARGEST_BIAS = 1 << 30
"""Largest code of a bias: a sum of 32 bits has as much room for products."""


def round_bias(bias: npt.NDArray[Any], scales: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return a bias `[C]` as int32 in units of the accumulator, `scales` `[C]` in float64."""
    limit = np.iinfo(np.int32).max
    codes: npt.NDArray[np.float64] = np.rint(bias.astype(np.float64) / scales)
    return codes.clip(-limit, limit).astype(np.int32)


def least_scales(bias: npt.NDArray[Any], step: float) -> Float32:
    """Return the smallest scales `[C]` of a weight in whose products a bias has a code.

    Training takes the weights of a channel to almost zero where only its bias is of use: in a
    trained medium voice of Piper's (joe), to 5e-7 beside a bias of 0.009.

    Args:
        bias: `[C]`.
        step: Scale of what the weight is multiplied with.
    """
    return (np.abs(bias.astype(np.float64)) / (step * _LARGEST_BIAS)).astype(np.float32)


def coarsen(
    codes: npt.NDArray[np.int8], scales: Float32, least: Float32
) -> tuple[npt.NDArray[np.int8], Float32]:
    """Return codes of eight bits, `[C, ...]`, and their scales, none of them below `least`.

    Sums of neighbours do not grow.
    """
    wanted, shares = _coarser(codes, scales, least)
    shares = shares.reshape(-1, *[1] * (codes.ndim - 1))
    return np.rint(codes * shares).astype(np.int8), wanted


def _coarser(
    codes: npt.NDArray[np.int8], scales: Float32, least: Float32
) -> tuple[Float32, Float32]:
    """Return scales that are not below `least`, and what codes are multiplied by."""
    is_empty = ~codes.reshape(len(codes), -1).any(1)
    wanted = usable_scales(np.where(is_empty, least, np.maximum(scales, least)))
    return wanted, np.where(is_empty, np.float32(1), scales / wanted)


LOWEST, HIGHEST = -8, 7
"""The limits of codes and of factors."""

_TRIED = (0, -1, 1)
"""Steps from the factor that just holds a block's largest weight to those whose error is
compared: a smaller one clips it and rounds the others finer."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(Generic[ArrayT]):
    """A weight in four bits, arrays of numpy or torch, which is an 8-bit weight when unpacked.

    A block of neighbouring inputs of an output channel shares a factor, and a channel a scale:
    weight = code · factor · scale. Codes and factors are both integers of four bits in [-8, 7], so
    their product is an integer of at most 64: what integer kernels multiply, exactly. And the sum
    of two is at most 128, which never overflows 16 bits, whatever the codes.

    Factors have a sign, because codes reach further down than up: the largest weight of a block
    becomes -8. On the demo voice's convolutions, blocks of 16, that and a choice between three
    neighbouring factors make 22.2 dB of signal-to-noise ratio; codes in [-7, 7] with an FP32 scale
    per block make 21.4, and take 6 bits per weight where these take 4.25.
    """

    codes: ArrayT
    """int8 in [-8, 7], `[outputs, inputs]`."""

    factors: ArrayT
    """int8 in [-8, 7] without 0, `[outputs, blocks]`; a block is inputs / blocks neighbours."""

    scales: ArrayT
    """FP32, `[outputs]`."""

    def wide(self) -> ArrayT:
        """Return the 8-bit codes, int8 in [-64, 64], `[outputs, inputs]`, in steps of `scales`."""
        blocks = self.codes.reshape(*self.factors.shape, -1)
        products: ArrayT = (blocks * self.factors[..., None]).reshape(self.codes.shape)
        return products

    def steps(self) -> ArrayT:
        """Return what a code counts in each block, FP32, `[outputs, blocks]`; some negative."""
        steps: ArrayT = self.factors * self.scales[:, None]
        return steps


def coarsen_blocks(blocks: Blocks[npt.NDArray[Any]], least: Float32) -> Blocks[npt.NDArray[Any]]:
    """Return a weight in four bits of whose scales none is below `least`."""
    wanted, shares = _coarser(blocks.codes, blocks.scales, least)
    sizes = np.rint(np.abs(blocks.factors) * shares[:, None]).clip(1)
    moved = np.abs(blocks.factors) * shares[:, None] / sizes
    codes = np.rint(blocks.codes.reshape(*sizes.shape, -1) * moved[..., None])
    factors = (np.sign(blocks.factors) * sizes).astype(np.int8)
    limited = codes.clip(LOWEST, HIGHEST).astype(np.int8)
    return Blocks(limited.reshape(blocks.codes.shape), factors, wanted)


def round_blocks(weight: ArrayT, block: int) -> Blocks[ArrayT]:
    """Round a weight to nearest in four bits.

    Args:
        weight: FP32, finite, `[outputs, ...]`; what follows the first axis is a multiple of `block`
            in size, and is taken in its order.
        block: Weights that share a factor.
    """
    # Every function used here has the same name and meaning in numpy and torch.
    xp: Any = np if isinstance(weight, np.ndarray) else sys.modules["torch"]
    outputs = weight.shape[0]
    blocks: Any = weight.reshape(outputs, -1, block)
    highest, lowest = xp.amax(blocks, 2), xp.amin(blocks, 2)
    is_above = highest > -lowest
    peaks = xp.where(is_above, highest, -lowest) / -LOWEST
    # The largest factor is 8 below zero and 7 above it.
    limits = xp.asarray(xp.where(is_above, -LOWEST, HIGHEST), dtype=xp.float32)
    scales = usable_scales(xp.amax(peaks / limits, 1))
    signs = xp.asarray(xp.where(is_above, -1, 1), dtype=xp.float32)
    fitting = xp.round(peaks / scales[:, None])
    best: Any = None
    for change in _TRIED:
        size = xp.minimum(xp.clip(fitting + change, 1, -LOWEST), limits)
        steps = signs * size * scales[:, None]
        codes = xp.clip(xp.round(blocks / steps[..., None]), LOWEST, HIGHEST)
        error = ((codes * steps[..., None] - blocks) ** 2).sum(2)
        if best is None:
            best = (codes, size, error)
            continue
        better = error < best[2]
        best = (
            xp.where(better[..., None], codes, best[0]),
            xp.where(better, size, best[1]),
            xp.where(better, error, best[2]),
        )
    codes = xp.asarray(best[0], dtype=xp.int8).reshape(outputs, -1)
    return Blocks(codes, xp.asarray(signs * best[1], dtype=xp.int8), scales)


_BLOCK = 128
"""Inputs after which the rest of the weight is updated at once."""

_DAMPING = 0.01
"""Share of the mean of the moments' diagonal that is added to it."""


def gptq(
    weight: ArrayT,
    moments: ArrayT,
    scales: ArrayT,
    limits: tuple[int, int],
    *,
    pair_limit: int | None = None,
    row: int | None = None,
) -> ArrayT:
    """Return the codes of a weight that keep the layer's output on calibration data.

    Inputs are rounded one after another, the later ones making up for the error of the earlier:
    Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
    Transformers", arXiv:2210.17323, algorithm 1, with scales that are fixed beforehand.

    Args:
        weight: `[outputs, inputs]`, finite, an array of numpy or torch as the others.
        moments: Σ x xᵀ of the layer's inputs, `[inputs, inputs]`, up to a factor. Weights of
            inputs that were always zero are rounded to nearest.
        scales: `[outputs, groups]`, not zero; each is shared by inputs / groups neighbours.
        limits: The lowest and the highest code.
        pair_limit: The largest magnitude of the sum of two neighbouring inputs' codes; None where
            nothing multiplies the codes two by two.
        row: Inputs of each tap of a convolution, which stand together; None if there are no taps.
            Where they are odd in number, every two that follow each other are neighbours.

    Returns:
        `[outputs, inputs]`, int8, or int16 where the limits are wider.
    """
    # Every function used here has the same name and meaning in numpy and torch.
    xp: Any = np if isinstance(weight, np.ndarray) else sys.modules["torch"]
    inputs = weight.shape[1]
    group, every = inputs // scales.shape[1], (row or inputs) % 2
    shares = _error_shares(xp, moments)
    # Rows are inputs from here on: they are contiguous.
    wanted, steps = _transposed(xp, weight), _transposed(xp, scales)
    codes, errors = xp.empty_like(wanted), xp.empty_like(wanted)
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        rest = wanted[start:end] + shares[start:end, :start] @ errors[:start]
        for i in range(start, end):
            step = steps[i // group]
            target = rest[i - start] + shares[i, start:i] @ errors[start:i]
            codes[i] = xp.clip(xp.round(target / step), *limits)
            if pair_limit is not None and (i % 2 or (every and i)):
                before = codes[i - 1]
                codes[i] = xp.clip(codes[i], -pair_limit - before, pair_limit - before)
            errors[i] = wanted[i] - codes[i] * step
    narrow = max(abs(limit) for limit in limits) <= CODE_LIMIT
    rounded: ArrayT = _transposed(xp, codes, xp.int8 if narrow else xp.int16)
    return rounded


def _transposed(xp: Any, matrix: Any, kind: Any = None) -> Any:
    """Return a contiguous copy of a transposed matrix, in float64 or a given type."""
    turned = xp.empty_like(matrix.T, dtype=kind or xp.float64)
    turned = turned.copy("C") if xp is np else turned.contiguous()
    turned[:] = matrix.T
    return turned


def _error_shares(xp: Any, moments: Any) -> Any:
    """Return the shares of the errors of earlier inputs that each input takes over.

    Where U Uᵀ are the moments, damped, with an upper triangle U, input i takes over U[j, i] /
    U[i, i] of the error of each j before it: then the output is closest to the original's if
    the inputs behind are free. So the paper's inverse of the moments is not needed.
    """
    damped = _transposed(xp, moments)  # symmetric
    diagonal = range(len(damped))
    mean = damped[diagonal, diagonal].mean()
    # Without any input there is nothing to keep: the identity rounds to nearest.
    damped[diagonal, diagonal] += _DAMPING * mean if mean > 0 else 1.0
    upper = xp.flip(xp.linalg.cholesky(xp.flip(damped, (0, 1))), (0, 1))
    return _transposed(xp, upper / upper[diagonal, diagonal])
