"""The operators as plain functions of weights in floating point."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812  its usual name

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.torch.layers.base import Geometry

__all__ = ["apply_operator", "outer_padding", "pad"]


def apply_operator(
    geometry: Geometry, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return what a linear layer or a convolution makes of inputs of its weight's type."""
    if geometry.operator == "Linear":
        return F.linear(inputs, weight, bias)
    if geometry.operator == "ConvTranspose1d":
        return F.conv_transpose1d(
            inputs,
            weight,
            bias,
            geometry.stride,
            geometry.padding,
            geometry.output_padding,
            geometry.groups,
            geometry.dilation,
        )
    padded, inner = pad(geometry, inputs)
    window = (inner.stride, inner.padding, inner.dilation, inner.groups)
    return F.conv1d(padded, weight, bias, *window)


def pad(geometry: Geometry, inputs: Tensor) -> tuple[Tensor, Geometry]:
    """Do what padding a kernel cannot do itself; return the geometry that is left for it."""
    before, inner = outer_padding(geometry)
    if not any(before):
        return inputs, inner
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    return F.pad(inputs, before, mode), inner


def outer_padding(geometry: Geometry) -> tuple[tuple[int, int], Geometry]:
    """Return a convolution's padding outside the kernel, and the geometry that is left for it.

    Kernels pad with zeros, on both sides alike.
    """
    if geometry.padding >= 0 and geometry.padding_mode == "zeros":
        return (0, 0), geometry
    total = 2 * geometry.padding
    if geometry.padding < 0:  # `same` with an even reach
        total = geometry.dilation * (geometry.shape[2] - 1)
    return (total // 2, total - total // 2), replace(geometry, padding=0, padding_mode="zeros")
