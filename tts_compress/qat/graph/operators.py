"""ONNX operators in torch, and what they are written with: attributes and constants."""

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor
from torch.nn import functional

from tts_compress.errors import QuantizationError
from tts_compress.onnx.nodes import STANDARD_DOMAINS

Operator: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]
"""Computes a node from its `Attributes` and its inputs, None for each that is left out."""

_TYPES = frozenset(
    {"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "INT32", "INT8", "UINT8", "BOOL"}
)
"""Element types; torch has the same names in lower case."""


class Attributes(dict[str, Any]):
    """The attributes of a node, written in version 13 or later of the standard operators."""

    def __init__(self, node: onnx.NodeProto) -> None:
        read = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        super().__init__({n: v.decode() if isinstance(v, bytes) else v for n, v in read.items()})
        self.label = f"{node.op_type} '{node.name or node.output[0]}'"
        self.outputs = len(node.output)

    def refuse(self, reason: str) -> QuantizationError:
        """Return the error for what cannot be computed here."""
        return QuantizationError(
            f"{self.label} {reason}; it cannot be trained: leave it outside of the part that is"
        )


def read_integers(values: Tensor) -> list[int]:
    """Return the sizes, axes or positions that a tensor of a graph holds."""
    integers: list[int] = values.reshape(-1).tolist()
    return integers


def read_tensor(tensor: onnx.TensorProto) -> Tensor:
    """Return a copy of a stored tensor."""
    kind = _torch_type(tensor.data_type, f"constant '{tensor.name}'")
    array = numpy_helper.to_array(tensor)
    # numpy has no bfloat16 of its own.
    return torch.tensor(array.astype(np.float32) if kind == torch.bfloat16 else array).to(kind)


def _torch_type(code: int, owner: str) -> torch.dtype:
    """Return torch's name of an ONNX element type; `owner` has it, for the message."""
    name = onnx.TensorProto.DataType.Name(code)
    if name not in _TYPES:
        raise QuantizationError(f"{owner} is of type {name}, which cannot be trained with in torch")
    kind: torch.dtype = getattr(torch, name.lower())
    return kind


_CONVOLUTIONS = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}
_TRANSPOSED = {3: torch.conv_transpose1d, 4: torch.conv_transpose2d, 5: torch.conv_transpose3d}
"""Functions by number of dimensions of the weight."""


def _unary(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda _, x: function(x)


def _several(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda _, *inputs: reduce(lambda a, b: function(*_together(a, b)), inputs)


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return both where the data is; what is computed from shapes stays on the processor."""
    return (a.to(b.device), b) if a.device.type == "cpu" else (a, b.to(a.device))


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _clip(_: Attributes, x: Tensor, *bounds: Tensor | None) -> Tensor:
    low, high = (None if b is None else b.item() for b in (*bounds, None, None)[:2])
    return x if low is None and high is None else x.clamp(low, high)


def _where(_: Attributes, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    a, b = _together(a, b)
    condition, a = _together(condition, a)
    return torch.where(condition, a, b.to(a.device))


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Operator:
    def compute(attributes: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
        # Before version 18 the axes of most are an attribute.
        chosen = attributes.get("axes", []) if axes is None else read_integers(axes)
        if not chosen and attributes.get("noop_with_empty_axes", 0):
            return x
        return function(x, chosen or list(range(x.ndim)), bool(attributes.get("keepdims", 1)))

    return compute


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    # torch multiplies along one axis at a time; the last first, so that the others keep theirs.
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _cumulate(attributes: Attributes, x: Tensor, axis: Tensor) -> Tensor:
    along, backwards = int(axis), bool(attributes.get("reverse", 0))
    values = x.flip(along) if backwards else x
    total = values.cumsum(along, dtype=x.dtype)
    if attributes.get("exclusive", 0):
        total = total - values
    return total.flip(along) if backwards else total


def _convolve(
    attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    function, window = _window(attributes, weight, _CONVOLUTIONS)
    axes, strides, dilations, pads, group = window
    if (automatic := attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        sizes = zip(x.shape[2:], weight.shape[2:], strides, dilations, strict=True)
        pads = _halves(
            [(-(-size // s) - 1) * s + (kernel - 1) * d + 1 - size for size, kernel, s, d in sizes],
            automatic,
        )
    padding = pads[:axes]
    if padding != pads[axes:]:
        # torch counts from the last axis on, and both ends of an axis beside each other.
        both = [pads[i + end] for i in reversed(range(axes)) for end in (0, axes)]
        x, padding = functional.pad(x, both), [0] * axes
    result: Tensor = function(x, weight, bias, strides, padding, dilations, group)
    return result


def _convolve_transposed(
    attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    function, window = _window(attributes, weight, _TRANSPOSED)
    axes, strides, dilations, cuts, group = window
    extra = attributes.get("output_padding", [0] * axes)
    result: Tensor = function(x, weight, bias, strides, 0, extra, group, dilations)
    automatic, shape = attributes.get("auto_pad", "NOTSET"), attributes.get("output_shape")
    if shape is None and automatic.startswith("SAME"):
        shape = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if shape is not None:
        sizes = zip(result.shape[2:], shape[-axes:], strict=True)
        cuts = _halves([have - want for have, want in sizes], automatic)
    for axis in range(axes):
        length = result.shape[axis + 2] - cuts[axis] - cuts[axis + axes]
        result = result.narrow(axis + 2, cuts[axis], length)
    return result


def _window(
    attributes: Attributes, weight: Tensor, functions: Mapping[int, Callable[..., Tensor]]
) -> tuple[Callable[..., Tensor], tuple[int, list[int], list[int], list[int], int]]:
    """Return torch's function, and the number of axes, strides, dilations, pads and groups."""
    axes, function = weight.ndim - 2, functions.get(weight.ndim)
    if function is None:
        raise attributes.refuse(f"has a weight of {weight.ndim} dimensions")
    strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads, group = attributes.get("pads", [0] * 2 * axes), attributes.get("group", 1)
    return function, (axes, strides, dilations, pads, group)


def _halves(totals: list[int], automatic: str) -> list[int]:
    """Return the share of each axis' total that goes before it, then the shares behind it."""
    less = [max(total, 0) // 2 for total in totals]
    more = [max(total, 0) - half for total, half in zip(totals, less, strict=True)]
    return less + more if automatic == "SAME_UPPER" else more + less


def _general_product(
    attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None
) -> Tensor:
    left = a.T if attributes.get("transA", 0) else a
    right = b.T if attributes.get("transB", 0) else b
    product: Tensor = attributes.get("alpha", 1.0) * (left @ right)
    return product if c is None else product + attributes.get("beta", 1.0) * c


def _normalize_layer(
    attributes: Attributes, x: Tensor, scale: Tensor, shift: Tensor | None = None
) -> Tensor:
    if attributes.outputs > 1:
        raise attributes.refuse("also returns mean and deviation")
    shape = list(x.shape[attributes.get("axis", -1) :])
    return functional.layer_norm(x, shape, scale, shift, attributes.get("epsilon", 1e-5))


def _normalize_batch(attributes: Attributes, x: Tensor, *stored: Tensor) -> Tensor:
    if attributes.outputs > 1 or attributes.get("training_mode", 0):
        raise attributes.refuse("updates mean and variance")
    axes = (-1, *(1,) * (x.ndim - 2))
    scale, shift, mean, variance = (values.reshape(axes) for values in stored)
    # Not torch's function, which has no gradients of the mean and variance.
    deviation: Tensor = (variance + attributes.get("epsilon", 1e-5)).sqrt()
    return (x - mean) * scale / deviation + shift


def _normalize_instance(attributes: Attributes, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    epsilon = attributes.get("epsilon", 1e-5)
    return functional.instance_norm(x, weight=scale, bias=shift, eps=epsilon)


_NAMED_ALIKE = (
    *("Abs", "Atan", "Ceil", "Cos", "Erf", "Exp", "Floor", "IsNaN", "Log", "Neg", "Reciprocal"),
    *("Relu", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Tanh"),
)

_SEVERAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "Pow": lambda a, b: torch.pow(a, b).to(a.dtype),
    "Sub": torch.sub,
    "Sum": torch.add,
}

_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keepdim=keep).sqrt(),
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceProd": _product,
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
}


def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    # On the processor, wherever the data is: whoever reads sizes needs them there.
    chosen = x.shape[attributes.get("start", 0) : attributes.get("end")]
    return torch.tensor(chosen, dtype=torch.int64)


def _reshape(attributes: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = read_integers(shape)
    if not attributes.get("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def _unsqueeze(_: Attributes, x: Tensor, axes: Tensor) -> Tensor:
    chosen = read_integers(axes)
    for axis in sorted(axis % (x.ndim + len(chosen)) for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def _split(attributes: Attributes, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = attributes.get("axis", 0)
    if sizes is None:  # equal parts, of which the last may be shorter
        each = -(-x.shape[axis] // attributes.outputs)
        return x.tensor_split([*range(each, x.shape[axis], each)], axis)
    return x.tensor_split([*accumulate(read_integers(sizes))][:-1], axis)


def _slice(_: Attributes, x: Tensor, starts: Tensor, *others: Tensor | None) -> Tensor:
    ends, axes, steps = (None if o is None else read_integers(o) for o in (*others, None, None)[:3])
    first = read_integers(starts)
    along, by = axes or range(len(first)), steps or [1] * len(first)
    for axis, *bounds in zip(along, first, ends or [], by, strict=True):
        # Python counts from behind, and stops at the ends, just as ONNX does.
        positions = range(*slice(*bounds).indices(x.shape[axis]))
        if positions.step == 1:
            x = x.narrow(axis, positions.start, len(positions))
        else:
            chosen = torch.tensor(positions, dtype=torch.int64, device=x.device)
            x = x.index_select(axis, chosen)
    return x


def _pad(
    attributes: Attributes,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    sizes = read_integers(pads)
    chosen = list(range(x.ndim)) if axes is None else read_integers(axes)
    mode = attributes.get("mode", "constant")
    ends = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        ends[axis] = (sizes[i], sizes[i + len(chosen)])
    if mode == "constant":
        both = [size for pair in reversed(ends) for size in pair]
        return functional.pad(x, both, value=float(value or 0))
    for axis, pair in enumerate(ends):
        if any(pair):
            positions = np.pad(np.arange(x.shape[axis]), pair, mode)
            x = x.index_select(axis, torch.from_numpy(positions).to(x.device))
    return x


def _expand(_: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(read_integers(shape))))


def _gather(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    before: list[slice | Tensor] = [slice(None)] * (attributes.get("axis", 0) % x.ndim)
    return x[(*before, indices.to(x.device))]


def _gather_elements(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0)
    return x.gather(axis, indices.to(x.device, torch.int64) % x.shape[axis])


def _gather_slices(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    if attributes.get("batch_dims", 0):
        raise attributes.refuse("looks up batch by batch")
    return x[indices.to(x.device).unbind(-1)]


def _scatter_elements(
    attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor
) -> Tensor:
    if attributes.get("reduction", "none") != "none":
        raise attributes.refuse(f"joins values by '{attributes['reduction']}'")
    axis = attributes.get("axis", 0)
    return x.scatter(axis, indices.to(x.device, torch.int64) % x.shape[axis], updates)


def _scatter_slices(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    reduction = attributes.get("reduction", "none")
    if reduction not in {"none", "add"}:
        raise attributes.refuse(f"joins values by '{reduction}'")
    return x.index_put(indices.to(x.device).unbind(-1), updates, accumulate=reduction == "add")


def _resize(
    attributes: Attributes,
    x: Tensor,
    _: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Repeat values; other forms are not trained (`is_trainable`)."""
    if scales is None or not scales.numel() or sizes is not None or "axes" in attributes:
        raise attributes.refuse("is given sizes or axes, and not a factor for each axis")
    for axis, factor in enumerate(scales.tolist()):
        if factor != 1:
            positions = torch.arange(int(x.shape[axis] * factor), device=x.device)
            x = x.index_select(axis, (positions / factor).floor().long())
    return x


def repeats_values(node: onnx.NodeProto) -> bool:
    """Return True if a `Resize` takes the value before each position, rather than a mean."""
    stated = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    expected = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    return stated.get("mode", b"nearest") == b"nearest" and expected.items() <= stated.items()


def _range(_: Attributes, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    bounds = (start.item(), limit.item(), step.item())
    return torch.arange(*bounds, dtype=start.dtype, device=start.device)


def _fill(attributes: Attributes, shape: Tensor) -> Tensor:
    stored = attributes.get("value")
    value = torch.zeros(1) if stored is None else read_tensor(stored)
    return value.reshape(1).expand(read_integers(shape))


OPERATORS: dict[str, Operator] = {
    **{name: _unary(getattr(torch, name.lower())) for name in _NAMED_ALIKE},
    **{name: _several(function) for name, function in _SEVERAL.items()},
    **{name: _reduction(function) for name, function in _REDUCTIONS.items()},
    "BatchNormalization": _normalize_batch,
    "Cast": lambda attributes, x: x.to(_torch_type(attributes.get("to"), attributes.label)),
    "Clip": _clip,
    "Conv": _convolve,
    "ConvTranspose": _convolve_transposed,
    "CastLike": lambda _, x, like: x.to(like.dtype),
    "CumSum": _cumulate,
    "Einsum": lambda attributes, *inputs: torch.einsum(attributes["equation"], *inputs),
    "Elu": lambda attributes, x: functional.elu(x, attributes.get("alpha", 1.0)),
    "Gelu": lambda attributes, x: functional.gelu(x, **attributes),
    "Gemm": _general_product,
    "InstanceNormalization": _normalize_instance,
    "LayerNormalization": _normalize_layer,
    "LeakyRelu": lambda attributes, x: functional.leaky_relu(x, attributes.get("alpha", 0.01)),
    "MatMul": lambda _, a, b: a @ b,
    "Not": _unary(torch.logical_not),
    "Softmax": lambda attributes, x: torch.softmax(x, attributes.get("axis", -1)),
    "Softplus": _unary(functional.softplus),
    "Where": _where,
    "Concat": lambda attributes, *parts: torch.cat(parts, attributes.get("axis", 0)),
    # Those of graphs are folded; noise that is fed brings others.
    "Constant": lambda attributes: read_tensor(attributes["value"]),
    "ConstantOfShape": _fill,
    "Dropout": lambda _, x, *__: x,
    "Expand": _expand,
    "Flatten": lambda attributes, x: x.reshape(x.shape[: attributes.get("axis", 1)].numel(), -1),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_slices,
    "Identity": lambda _, x: x,
    "NonZero": lambda _, x: x.nonzero().T,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_slices,
    "Shape": _shape,
    "Size": lambda _, x: torch.tensor(x.numel(), dtype=torch.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": lambda _, x, axes=None: x.squeeze(
        tuple(range(x.ndim) if axes is None else read_integers(axes))
    ),
    "Tile": lambda _, x, repeats: x.repeat(read_integers(repeats)),
    "Transpose": lambda attributes, x: x.permute(
        attributes.get("perm", list(reversed(range(x.ndim))))
    ),
    "Unsqueeze": _unsqueeze,
}
"""Operators of the standard domain by name. Random ones are missing: noise has to be an input."""


def is_trainable(node: onnx.NodeProto) -> bool:
    """Return True if a node can be computed in torch."""
    is_standard = node.domain in STANDARD_DOMAINS and node.op_type in OPERATORS
    return is_standard and (node.op_type != "Resize" or repeats_values(node))


def find_operator(node: onnx.NodeProto) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function that computes a node from its inputs, None for each that is left out."""
    if not is_trainable(node):
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise QuantizationError(
            f"operator {name} of node '{node.name or node.output[0]}' cannot be trained; "
            "leave it outside of the part that is"
        )
    operator, attributes = OPERATORS[node.op_type], Attributes(node)

    def compute(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        result = operator(attributes, *inputs)
        return result if isinstance(result, tuple) else (result,)

    return compute
