"""ONNX operators that move, cut, repeat, look up and put values, or make them from nothing."""

from itertools import accumulate

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor
from torch.nn import functional

from tts_compress.qat.graph.operators import Attributes, Operator, read_integers, read_tensor


def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    # On the processor, wherever the data is: whoever reads sizes needs them there.
    chosen = x.shape[attributes.get("start", 0) : attributes.get("end")]
    return torch.tensor(chosen, dtype=torch.int64)


def _reshape(attributes: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = read_integers(shape)
    if not attributes.get("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(attributes: Attributes, x: Tensor) -> Tensor:
    return x.reshape(x.shape[: attributes.get("axis", 1)].numel(), -1)


def _squeeze(_: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(read_integers(axes)))


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
    value: Tensor | float | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    given = read_integers(pads)
    chosen = list(range(x.ndim)) if axes is None else read_integers(axes)
    mode = attributes.get("mode", "constant")
    ends = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        ends[axis] = (given[i], given[i + len(chosen)])
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
    places: list[slice | Tensor] = [slice(None)] * (attributes.get("axis", 0) % x.ndim)
    return x[(*places, indices.to(x.device))]


def _gather_elements(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0)
    return x.gather(axis, indices.to(x.device, torch.int64) % x.shape[axis])


def _gather_slices(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    if attributes.get("batch_dims", 0):
        raise attributes.refuse("looks up batch by batch")
    return x[indices.to(x.device).unbind(-1)]


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
    """Repeat values; other forms than that are outside of what is trained (`is_trainable`)."""
    if scales is None or not scales.numel() or sizes is not None or "axes" in attributes:
        raise attributes.refuse("is given sizes or axes, and not a factor for each axis")
    for axis, factor in enumerate(scales.tolist()):
        if factor != 1:
            made = torch.arange(int(x.shape[axis] * factor), device=x.device)
            x = x.index_select(axis, (made / factor).floor().long())
    return x


def repeats_values(node: onnx.NodeProto) -> bool:
    """Return True if a `Resize` takes the value before each position, rather than a mean."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    expected = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric"}
    return (
        found.get("nearest_mode") == b"floor"
        and expected.items() <= ({"mode": b"nearest"} | found).items()
    )


def _range(_: Attributes, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    bounds = (start.item(), limit.item(), step.item())
    return torch.arange(*bounds, dtype=start.dtype, device=start.device)


def _constant(attributes: Attributes) -> Tensor:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in attributes:
            kind = torch.float32 if "float" in name else torch.int64
            return torch.tensor(attributes[name], dtype=kind)
    if "value" not in attributes:
        raise attributes.refuse("holds text or a sparse tensor")
    return read_tensor(attributes["value"])


def _fill(attributes: Attributes, shape: Tensor) -> Tensor:
    stored = attributes.get("value")
    value = torch.zeros(1) if stored is None else read_tensor(stored)
    return value.reshape(1).expand(read_integers(shape))


SHAPES: dict[str, Operator] = {
    "Concat": lambda attributes, *parts: torch.cat(parts, attributes.get("axis", 0)),
    "Constant": _constant,
    "ConstantOfShape": _fill,
    "Dropout": lambda _, x, *__: x,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_slices,
    "Identity": lambda _, x: x,
    "NonZero": lambda _, x: x.nonzero().T,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterND": _scatter_slices,
    "Shape": _shape,
    "Size": lambda _, x: torch.tensor(x.numel(), dtype=torch.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda _, x, repeats: x.repeat(read_integers(repeats)),
    "Transpose": lambda attributes, x: x.permute(
        attributes.get("perm", list(reversed(range(x.ndim))))
    ),
    "Unsqueeze": _unsqueeze,
}
"""Operators by name."""
