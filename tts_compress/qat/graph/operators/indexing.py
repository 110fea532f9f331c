"""Operators that look values up, put them somewhere, or make them from nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tts_compress.qat.graph.operators.attributes import read_integers, read_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.qat.graph.operators.attributes import Attributes, Operator

__all__ = ["INDEXING"]


def _gather(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.integer("axis", 0) % x.ndim
    places = _counted(indices, x.shape[axis]).to(x.device)
    found = x.index_select(axis, places.reshape(-1))
    return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_elements(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.integer("axis", 0)
    return x.gather(axis, _counted(indices, x.shape[axis]).to(x.device))


def _gather_slices(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    if attributes.integer("batch_dims", 0):
        raise attributes.refuse("looks up batch by batch")
    return x[_places(x, indices)]


def _scatter_slices(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    reduction = attributes.text("reduction", "none")
    if reduction not in {"none", "add"}:
        raise attributes.refuse(f"joins values by '{reduction}'")
    return x.index_put(_places(x, indices), updates, accumulate=reduction == "add")


def _places(x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
    """Return an index per axis of tuples of indices, (..., axes)."""
    return tuple(
        _counted(part, size).to(x.device)
        for part, size in zip(indices.unbind(-1), x.shape, strict=False)
    )


def _counted(indices: Tensor, size: int) -> Tensor:
    """Return indices counted from the beginning; negative ones count from the end."""
    return torch.where(indices < 0, indices + size, indices).to(torch.int64)


def _positions(_: Attributes, x: Tensor) -> Tensor:
    return x.nonzero().T


def _range(_: Attributes, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    bounds = (start.item(), limit.item(), step.item())
    return torch.arange(*bounds, dtype=start.dtype, device=start.device)


def _constant(attributes: Attributes) -> Tensor:
    for name, kind in (("float", torch.float32), ("int", torch.int64)):
        for plural in ("", "s"):
            found = attributes.values.get(f"value_{name}{plural}")
            if found is not None:
                return torch.tensor(found, dtype=kind)
    if "value" not in attributes.values:
        raise attributes.refuse("holds text or a sparse tensor")
    return read_tensor(attributes.values["value"])


def _fill(attributes: Attributes, shape: Tensor) -> Tensor:
    stored = attributes.values.get("value")
    value = torch.zeros(1) if stored is None else read_tensor(stored)
    return value.reshape(1).expand(read_integers(shape))


INDEXING: dict[str, Operator] = {
    "Constant": _constant,
    "ConstantOfShape": _fill,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_slices,
    "NonZero": _positions,
    "Range": _range,
    "ScatterND": _scatter_slices,
}
"""By name."""
