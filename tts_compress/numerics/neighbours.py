"""Pairs of weights that integer kernels multiply together, and the limit of their codes' sum.

x86 processors without VNNI multiply u8 activations with s8 weights by `vpmaddubsw`, which adds the
products of two neighbouring inputs in 16 bits and saturates. With activations up to 255 the sum
stays within ±32,767 if and only if |w₁ + w₂| ≤ 128: weights of opposite sign, each at most 127,
always keep that. Wherever codes do, results are exact, whatever the activations.

Neighbours, as the kernels of onnxruntime 1.31 (MLAS), fbgemm and oneDNN in torch 2.13 show them
(`tests/numerics/test_kernels.py`): MLAS and fbgemm take the inputs of an output two by two along
the row that is summed up, taps outermost and channels innermost; oneDNN's convolutions take the
channels of each tap two by two. Both are the same where channels are even in number. Where they are
odd, rows also begin at either parity, so every two that follow each other count as neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

CODE_LIMIT = 127
"""The largest magnitude of an 8-bit weight's code; symmetric, so -128 is not used."""

PAIR_LIMIT = 128
"""The largest magnitude of the sum of two neighbours' codes: 255 · 129 overflows 16 bits."""

PAIR_SPAN = 127.999
"""Steps that the sum of two real neighbours may take. Just less than `PAIR_LIMIT`: then both cannot
be rounded up past it, and the error of dividing in FP32 is far smaller than what is left."""

ArrayT = TypeVar("ArrayT", "npt.NDArray[Any]", "Tensor")


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
