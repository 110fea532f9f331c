"""Rounding weights to 8 bits."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.errors import QuantizationError

__all__ = ["Float32", "Int8", "check_half", "quantize_weight"]

Float32: TypeAlias = npt.NDArray[np.float32]
Int8: TypeAlias = npt.NDArray[np.int8]


def quantize_weight(weight: Float32, axis: int, *, bits: int = 8) -> tuple[Int8, Float32]:
    """Round a weight symmetrically, with one scale per channel.

    Args:
        weight: Shape `[..., C, ...]` with the `C` channels on `axis`.
        axis: The channel axis.
        bits: 8; or 7 where the processor adds pairs of products in 16 bits, which 8-bit weights
            would overflow.

    Returns:
        Integers of the weight's shape in `[-(2^(bits-1) - 1), 2^(bits-1) - 1]`, and scales `[C]`,
        such that `integers * scales` differs from the weight by at most half a scale.
    """
    limit = 2 ** (bits - 1) - 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight).max(axis=others)
    # A channel of zeros needs some scale; a subnormal one would be flushed to zero.
    smallest = np.float32(np.finfo(np.float32).tiny)
    scales = np.where(largest > 0, np.maximum(largest / limit, smallest), 1).astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    integers = np.clip(np.rint(weight / scales.reshape(shape)), -limit, limit)
    return integers.astype(np.int8), scales


def check_half(name: str, values: Float32) -> None:
    """Refuse a weight that half precision would turn into infinities.

    Raises:
        QuantizationError: A value is beyond float16.
    """
    largest = float(np.finfo(np.float16).max)
    if values.size and np.abs(values).max() > largest:
        raise QuantizationError(
            f"weight '{name}' has values beyond float16 (±{largest:.0f}); "
            "exclude its module in the recipe"
        )
