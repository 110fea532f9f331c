"""Operators that sum up, or spread over, whole axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tts_compress.qat.graph.operators.attributes import read_integers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tts_compress.qat.graph.operators.attributes import Attributes, Operator

__all__ = ["REDUCTIONS"]


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Operator:
    def reduce(attributes: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = attributes.integers("axes") if axes is None else read_integers(axes)
        if not chosen:
            if attributes.integer("noop_with_empty_axes", 0):
                return x
            chosen = list(range(x.ndim))
        return function(x, chosen, bool(attributes.integer("keepdims", 1)))

    return reduce


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    # torch multiplies along one axis at a time; the last first, so that the others keep theirs.
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _softmax(attributes: Attributes, x: Tensor) -> Tensor:
    if attributes.opset >= 13:
        return torch.softmax(x, attributes.integer("axis", -1))
    # Before version 13 everything from the axis on was one.
    flat = x.flatten(attributes.integer("axis", 1) % x.ndim)
    return torch.softmax(flat, -1).reshape(x.shape)


def _cumulate(attributes: Attributes, x: Tensor, axis: Tensor) -> Tensor:
    (along,) = read_integers(axis)
    backwards = bool(attributes.integer("reverse", 0))
    values = x.flip(along) if backwards else x
    total = values.cumsum(along, dtype=x.dtype)
    if attributes.integer("exclusive", 0):
        total = total - values
    return total.flip(along) if backwards else total


REDUCTIONS: dict[str, Operator] = {
    "CumSum": _cumulate,
    "ReduceL2": _reduction(
        lambda x, axes, keep: x.square().sum(axes, keepdim=keep).sqrt(),
    ),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMean": _reduction(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(
        lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
    ),
    "Softmax": _softmax,
}
"""By name."""
