"""The tables of positions, which are sines: computed when a model is built, or read from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor, nn

__all__ = ["compute_tables", "drop_tables"]

_NAME = "weights"


def drop_tables(root: nn.Module) -> nn.Module:
    """Keep computed tables out of what a file gets, in place; return the root.

    In Parler-TTS mini one takes 17 MB, in FP32. One that is not what the package computes stays.
    """
    import torch

    for _, module in _with_tables(root):
        table = module.weights
        if torch.equal(table, _computed(module, table)):
            _hold(module, table.detach())
    return root


def compute_tables(root: nn.Module, stored: Collection[str]) -> nn.Module:
    """Give a model the tables that its file does not hold, in place; return the root.

    Args:
        root: Their shapes are right; values may be missing.
        stored: Names of the file's tensors.
    """
    for name, module in _with_tables(root):
        if f"{name}.{_NAME}" not in stored:
            _hold(module, _computed(module, module.weights))
    return root


def _with_tables(root: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, module)
        for name, module in root.named_modules()
        if type(module).__name__ == "ParlerTTSSinusoidalPositionalEmbedding"
    ]


def _computed(module: Any, table: Tensor) -> Tensor:
    found: Tensor = module.get_embedding(*table.shape)
    return found


def _hold(module: Any, table: Tensor) -> None:
    del module.weights
    module.register_buffer(_NAME, table, persistent=False)
