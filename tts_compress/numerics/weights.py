"""Rounding weights to 8 bits, in numpy; `layers.codes.round_channels` is the same in torch."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.numerics.neighbours import CODE_LIMIT, PAIR_SPAN, neighbour_sums

__all__ = ["Float32", "Int8", "round_weight"]

Float32: TypeAlias = npt.NDArray[np.float32]
Int8: TypeAlias = npt.NDArray[np.int8]


def round_weight(weight: Float32, axis: int, *, multiplied: bool) -> tuple[Int8, Float32]:
    """Round a weight symmetrically, with one scale per output channel.

    Args:
        weight: Shape `[..., C, ...]` with the `C` output channels on `axis`; without it, the first
            axis is that of the inputs.
        axis: The channel axis.
        multiplied: Whether integer kernels multiply the codes with activations. Then a channel
            whose neighbours could overflow `vpmaddubsw` gets a larger scale, by just what it takes.

    Returns:
        Codes of the weight's shape in [-127, 127], and scales `[C]`, such that `codes · scales`
        differs from the weight by at most half a scale.
    """
    channels_first = np.moveaxis(weight, axis, 0)
    rows = channels_first.reshape(len(channels_first), -1)
    scales = np.abs(rows).max(axis=1) / np.float32(CODE_LIMIT)
    if multiplied:
        sums = np.abs(neighbour_sums(channels_first)).max(axis=1, initial=0)
        scales = np.maximum(scales, sums / np.float32(PAIR_SPAN))
    # A channel of zeros needs some scale; a subnormal one would be flushed to zero.
    smallest = np.float32(np.finfo(np.float32).tiny)
    scales = np.where(scales > 0, np.maximum(scales, smallest), np.float32(1))
    shape = [1] * weight.ndim
    shape[axis] = -1
    codes = np.rint(weight / scales.reshape(shape)).clip(-CODE_LIMIT, CODE_LIMIT)
    return codes.astype(np.int8), scales
