"""Rounding of weights to 8 bits, and of biases to the units of an accumulator.

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
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Float32: TypeAlias = npt.NDArray[np.float32]
ArrayT = TypeVar("ArrayT", "npt.NDArray[Any]", "Tensor")

CODE_LIMIT = 127
"""The largest magnitude of an 8-bit weight's code; symmetric, so -128 is not used."""

PAIR_LIMIT = 128
"""The largest magnitude of the sum of two neighbours' codes: 255 · 129 overflows 16 bits."""

PAIR_SPAN = 127.999
"""Steps that the sum of two real neighbours may take. Just less than `PAIR_LIMIT`: then both cannot
be rounded up past it, and the error of dividing in FP32 is far smaller than what is left."""


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
    shape = [-1 if dimension == axis else 1 for dimension in range(weight.ndim)]
    codes = xp.clip(xp.round(weight / scales.reshape(shape)), -CODE_LIMIT, CODE_LIMIT)
    return xp.asarray(codes, dtype=xp.int8), scales


def usable_scales(scales: ArrayT) -> ArrayT:
    """Return scales that a weight can be divided by, an array of numpy or torch."""
    xp: Any = np if isinstance(scales, np.ndarray) else sys.modules["torch"]
    # A channel of zeros needs some scale; a subnormal one would be flushed to zero.
    smallest = float(np.finfo(np.float32).tiny)
    usable: ArrayT = xp.where(scales > 0, xp.clip(scales, smallest, None), xp.ones_like(scales))
    return usable


def round_bias(bias: npt.NDArray[Any], scales: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return a bias `[C]` as int32 in units of the accumulator, `scales` `[C]` in float64."""
    limit = np.iinfo(np.int32).max
    codes: npt.NDArray[np.float64] = np.rint(bias.astype(np.float64) / scales)
    return codes.clip(-limit, limit).astype(np.int32)
