"""Rounding of weights to 8 bits, and of biases to the units of an accumulator."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tts_compress.numerics.neighbours import CODE_LIMIT, PAIR_SPAN, neighbour_sums

if TYPE_CHECKING:
    from torch import Tensor

Float32: TypeAlias = npt.NDArray[np.float32]
Int8: TypeAlias = npt.NDArray[np.int8]
ArrayT = TypeVar("ArrayT", "npt.NDArray[Any]", "Tensor")


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
    # A channel of zeros needs some scale; a subnormal one would be flushed to zero.
    smallest = float(np.finfo(np.float32).tiny)
    scales = xp.where(scales > 0, xp.clip(scales, smallest, None), xp.ones_like(scales))
    shape = [-1 if dimension == axis else 1 for dimension in range(weight.ndim)]
    codes = xp.clip(xp.round(weight / scales.reshape(shape)), -CODE_LIMIT, CODE_LIMIT)
    return xp.asarray(codes, dtype=xp.int8), scales


def round_bias(bias: npt.NDArray[Any], scales: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return a bias `[C]` as int32 in units of the accumulator, `scales` `[C]` in float64."""
    limit = np.iinfo(np.int32).max
    codes: npt.NDArray[np.float64] = np.rint(bias.astype(np.float64) / scales)
    return codes.clip(-limit, limit).astype(np.int32)
