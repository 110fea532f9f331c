"""Weights in four bits by blocks, such that they are 8-bit weights when they are unpacked.

A block of neighbouring inputs of an output channel shares a factor, and a channel a scale:
weight = code · factor · scale. Codes and factors are both integers of four bits in [-8, 7], so
their product is an integer of at most 64: what integer kernels multiply, exactly. And the sum of
two is at most 128, which never overflows the 16 bits of `numerics.weights`, whatever the codes.

Factors have a sign, because codes reach further down than up: the largest weight of a block
becomes -8. On the demo voice's convolutions, blocks of 16, that and a choice between three
neighbouring factors make 22.2 dB of signal-to-noise ratio; codes in [-7, 7] with an FP32 scale per
block make 21.4, and take 6 bits per weight where these take 4.25.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from tts_compress.numerics.weights import ArrayT, usable_scales

LOWEST, HIGHEST = -8, 7
"""The limits of codes and of factors."""

_TRIED = (0, -1, 1)
"""Steps from the factor that just holds a block's largest weight to those whose error is
compared: a smaller one clips it and rounds the others finer."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(Generic[ArrayT]):
    """A weight in four bits, arrays of numpy or torch."""

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
