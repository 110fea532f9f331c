"""Operators that move, cut and repeat values."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from tts_compress.qat.graph.operators.attributes import read_integers

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.qat.graph.operators.attributes import Attributes, Operator

__all__ = ["SHAPES"]


def _keep(_: Attributes, x: Tensor, *__: Tensor | None) -> Tensor:
    return x


def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    begin, end = attributes.integer("start", 0), attributes.values.get("end")
    # On the processor, wherever the data is: whoever reads sizes needs them there.
    return torch.tensor(list(x.shape)[begin:end], dtype=torch.int64)


def _size(_: Attributes, x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


def _reshape(attributes: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = read_integers(shape)
    if not attributes.integer("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(attributes: Attributes, x: Tensor) -> Tensor:
    axis = attributes.integer("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _transpose(attributes: Attributes, x: Tensor) -> Tensor:
    return x.permute(attributes.integers("perm") or list(reversed(range(x.ndim))))


def _squeeze(attributes: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = attributes.integers("axes") if axes is None else read_integers(axes)
    return x.squeeze() if chosen is None else x.squeeze(tuple(chosen))


def _unsqueeze(attributes: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = (attributes.integers("axes") if axes is None else read_integers(axes)) or []
    for axis in sorted(axis % (x.ndim + len(chosen)) for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def _concatenate(attributes: Attributes, *parts: Tensor) -> Tensor:
    return torch.cat(parts, attributes.integer("axis", 0))


def _split(attributes: Attributes, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = attributes.integer("axis", 0)
    chosen = attributes.integers("split") if sizes is None else read_integers(sizes)
    if chosen is None:  # equal parts, of which the last may be shorter
        each = -(-x.shape[axis] // attributes.outputs)
        chosen = [each] * (attributes.outputs - 1)
        chosen.append(x.shape[axis] - sum(chosen))
    return tuple(
        x.narrow(axis, end - size, size)
        for end, size in zip(accumulate(chosen), chosen, strict=True)
    )


def _slice(attributes: Attributes, x: Tensor, *bounds: Tensor | None) -> Tensor:
    given = [None if bound is None else read_integers(bound) for bound in bounds]
    if not given:  # before version 10
        given = [attributes.integers(name) for name in ("starts", "ends", "axes")]
    starts, ends, axes, steps = [*given, None, None][:4]
    assert starts is not None
    assert ends is not None
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i]
        # Python counts from behind, and stops at the ends, just as ONNX does.
        bound = slice(start, end, 1 if steps is None else steps[i])
        x = _take(x, axis, range(*bound.indices(x.shape[axis])))
    return x


def _take(x: Tensor, axis: int, positions: range) -> Tensor:
    if len(positions) == x.shape[axis]:
        return x if positions.step > 0 else x.flip(axis)
    if positions.step == 1:
        return x.narrow(axis, positions.start, len(positions))
    return x.index_select(axis, torch.tensor(positions, dtype=torch.int64, device=x.device))


def _pad(
    attributes: Attributes,
    x: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    given = attributes.integers("pads") if pads is None else read_integers(pads)
    chosen = list(range(x.ndim)) if axes is None else read_integers(axes)
    assert given is not None
    mode = attributes.text("mode", "constant")
    ends = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        ends[axis] = (given[i], given[i + len(chosen)])
    if mode == "constant":
        filled = attributes.real("value", 0.0) if value is None else value.item()
        return functional.pad(x, [size for pair in reversed(ends) for size in pair], value=filled)
    for axis, (begin, end) in enumerate(ends):
        if begin or end:
            positions = np.pad(np.arange(x.shape[axis]), (begin, end), mode)  # type: ignore[call-overload]
            x = x.index_select(axis, torch.from_numpy(positions).to(x.device))
    return x


def _expand(_: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = np.broadcast_shapes(tuple(x.shape), tuple(read_integers(shape)))
    return x.expand(sizes)


def _tile(_: Attributes, x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(read_integers(repeats))


SHAPES: dict[str, Operator] = {
    "Concat": _concatenate,
    "Dropout": _keep,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _keep,
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""By name."""
