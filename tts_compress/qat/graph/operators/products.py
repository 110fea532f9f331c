"""Operators that hold weights: convolutions, products, normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tts_compress.qat.graph.operators.attributes import read_integers

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.qat.graph.operators.attributes import Attributes, Operator

__all__ = ["PRODUCTS"]

_CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSED = {
    1: torch.conv_transpose1d,
    2: torch.conv_transpose2d,
    3: torch.conv_transpose3d,
}


def _convolve(
    attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    axes = weight.ndim - 2
    strides = attributes.integers("strides") or [1] * axes
    dilations = attributes.integers("dilations") or [1] * axes
    pads = _pads(attributes, x, weight, strides, dilations)
    if pads[:axes] == pads[axes:]:
        padding = pads[:axes]
    else:
        padding = [0] * axes
        # torch counts from the last axis on, and both ends of an axis beside each other.
        both = [pads[i + end] for i in reversed(range(axes)) for end in (0, axes)]
        x = functional.pad(x, both)
    function = _CONVOLUTIONS.get(axes)
    if function is None:
        raise attributes.refuse(f"has a weight of {weight.ndim} dimensions")
    group = attributes.integer("group", 1)
    result: Tensor = function(x, weight, bias, strides, padding, dilations, group)
    return result


def _pads(
    attributes: Attributes, x: Tensor, weight: Tensor, strides: list[int], dilations: list[int]
) -> list[int]:
    """Return how much is put before each axis, then how much behind each."""
    axes = len(strides)
    automatic = attributes.text("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        return attributes.integers("pads") or [0] * 2 * axes
    if automatic == "VALID":
        return [0] * 2 * axes
    begin, end = [], []
    for size, kernel, stride, dilation in zip(
        x.shape[2:], weight.shape[2:], strides, dilations, strict=True
    ):
        wanted = (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size
        less, more = max(wanted, 0) // 2, -(-max(wanted, 0) // 2)
        begin.append(less if automatic == "SAME_UPPER" else more)
        end.append(more if automatic == "SAME_UPPER" else less)
    return begin + end


def _convolve_transposed(
    attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    axes = weight.ndim - 2
    strides = attributes.integers("strides") or [1] * axes
    dilations = attributes.integers("dilations") or [1] * axes
    extra = attributes.integers("output_padding") or [0] * axes
    function = _TRANSPOSED.get(axes)
    if function is None:
        raise attributes.refuse(f"has a weight of {weight.ndim} dimensions")
    group = attributes.integer("group", 1)
    result: Tensor = function(x, weight, bias, strides, 0, extra, group, dilations)
    pads = _cuts(attributes, x, result, strides)
    for axis in range(axes):
        begin, end = pads[axis], pads[axis + axes]
        result = result.narrow(axis + 2, begin, result.shape[axis + 2] - begin - end)
    return result


def _cuts(attributes: Attributes, x: Tensor, full: Tensor, strides: list[int]) -> list[int]:
    """Return how much of a transposed convolution is dropped before and behind each axis."""
    axes = len(strides)
    automatic = attributes.text("auto_pad", "NOTSET")
    shape = attributes.integers("output_shape")
    if shape is None and automatic.startswith("SAME"):
        shape = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if shape is None:
        given = attributes.integers("pads") if automatic == "NOTSET" else None
        return given or [0] * 2 * axes
    spare = [max(have - want, 0) for have, want in zip(full.shape[2:], shape[-axes:], strict=True)]
    less, more = [size // 2 for size in spare], [-(-size // 2) for size in spare]
    return less + more if automatic == "SAME_UPPER" else more + less


def _multiply(_: Attributes, a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _general_product(
    attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None
) -> Tensor:
    left = a.T if attributes.integer("transA", 0) else a
    right = b.T if attributes.integer("transB", 0) else b
    product = attributes.real("alpha", 1.0) * (left @ right)
    return product if c is None else product + attributes.real("beta", 1.0) * c


def _normalize_layer(
    attributes: Attributes, x: Tensor, scale: Tensor, shift: Tensor | None = None
) -> Tensor:
    if attributes.outputs > 1:
        raise attributes.refuse("also returns mean and deviation")
    shape = x.shape[attributes.integer("axis", -1) :]
    epsilon = attributes.real("epsilon", 1e-5)
    return functional.layer_norm(x, read_integers(shape), scale, shift, epsilon)


PRODUCTS: dict[str, Operator] = {
    "Conv": _convolve,
    "ConvTranspose": _convolve_transposed,
    "Gemm": _general_product,
    "LayerNormalization": _normalize_layer,
    "MatMul": _multiply,
}
"""By name."""
