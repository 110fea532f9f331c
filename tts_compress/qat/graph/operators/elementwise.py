"""Operators on one element, or pairs of elements, at a time."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tts_compress.qat.graph.operators.attributes import torch_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.qat.graph.operators.attributes import Attributes, Operator

__all__ = ["ELEMENTWISE"]


def _single(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda _, x: function(x)


def _pair(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda _, a, b: function(*_together(a, b))


def _several(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda _, *inputs: reduce(lambda a, b: function(*_together(a, b)), inputs)


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return both where the data is; what is computed from shapes stays on the processor."""
    if a.device == b.device:
        return a, b
    return (a.to(b.device), b) if a.device.type == "cpu" else (a, b.to(a.device))


def _divide(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def _power(a: Tensor, b: Tensor) -> Tensor:
    return torch.pow(a, b).to(a.dtype)


def _leaky_relu(attributes: Attributes, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, attributes.real("alpha", 0.01))


def _elu(attributes: Attributes, x: Tensor) -> Tensor:
    return functional.elu(x, attributes.real("alpha", 1.0))


def _gelu(attributes: Attributes, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=attributes.text("approximate", "none"))


def _prelu(_: Attributes, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _clip(
    attributes: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    if attributes.opset < 11:
        bounds = attributes.values.get("min"), attributes.values.get("max")
        return x if bounds == (None, None) else x.clamp(*bounds)
    if low is not None:
        x = torch.maximum(*_together(x, low))
    return x if high is None else torch.minimum(*_together(x, high))


def _cast(attributes: Attributes, x: Tensor) -> Tensor:
    return x.to(torch_type(attributes.integer("to", 0), attributes.label))


def _where(_: Attributes, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    a, b = _together(a, b)
    condition, a = _together(condition, a)
    return torch.where(condition, a, b.to(a.device))


_SINGLE: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": functional.softplus,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}

_PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": _power,
    "Sub": torch.sub,
}

_MANY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
}

ELEMENTWISE: dict[str, Operator] = {
    **{name: _single(function) for name, function in _SINGLE.items()},
    **{name: _pair(function) for name, function in _PAIRS.items()},
    **{name: _several(function) for name, function in _MANY.items()},
    "Cast": _cast,
    "Clip": _clip,
    "Elu": _elu,
    "Gelu": _gelu,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Where": _where,
}
"""By name. `Identity` and the like are among the shapes."""
