"""Tensors that a file need not hold: what is computed, and what only training reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import Tensor, nn

__all__ = ["compute_tables", "drop_tables"]

_SUMS = ("embed_avg", "cluster_size")
"""Running sums from which training makes a codec's tables; as large as these."""


def drop_tables(root: nn.Module) -> nn.Module:
    """Keep such tensors out of what a file gets, in place; return the root.

    A table of positions that is not what upstream computes stays.
    """
    for _, module, name, computed in _tables(root):
        if name in _SUMS or module.get_buffer(name).equal(computed):
            _hold(module, name, computed)
    return root


def compute_tables(root: nn.Module, stored: Collection[str]) -> nn.Module:
    """Give a model the tables that its file does not hold, in place; return the root.

    Args:
        root: Their shapes are right; values may be missing (`meta`).
        stored: Names of the file's tensors.
    """
    for path, module, name, computed in _tables(root):
        if f"{path}.{name}" not in stored:
            _hold(module, name, computed)
    return root


def _tables(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Yield path, module, name and computed values of all there are; equal ones share memory."""
    positions: dict[tuple[int, int], Tensor] = {}
    for path, module in root.named_modules():
        kind: Any = type(module)
        if kind.__name__ == "EuclideanCodebook":
            for name in _SUMS:
                # Of any size, it takes the memory of one number.
                yield path, module, name, torch.zeros(1).expand(module.get_buffer(name).shape)
        elif kind.__name__ == "PositionalEncoding":
            length, _, width = module.get_buffer("pe").shape
            if (length, width) not in positions:
                positions[length, width] = kind(width, 0.0, length).pe
            yield path, module, "pe", positions[length, width]


def _hold(module: nn.Module, name: str, values: Tensor) -> None:
    delattr(module, name)
    module.register_buffer(name, values, persistent=False)
