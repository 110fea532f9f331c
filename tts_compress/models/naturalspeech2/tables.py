"""What training leaves in a codec's tables and speaking does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["forget_sums"]

_SUMS = ("embed_avg", "cluster_size")
"""Running sums from which training makes the entries; as large as these."""


def forget_sums(root: nn.Module) -> nn.Module:
    """Give the codec's tables zeros without memory for their running sums, in place; return it.

    Files do not keep them: they are half of what the tables take.
    """
    import torch

    for module in root.modules():
        if type(module).__name__ != "EuclideanCodebook":
            continue
        table: Any = module
        for name in _SUMS:
            shape = getattr(table, name).shape
            delattr(table, name)
            zeros = torch.zeros(1).expand(shape)
            table.register_buffer(name, zeros, persistent=False)
    return root
