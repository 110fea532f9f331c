"""Modules as trees: copies that share weights, and one leaf in the place of another."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from tts_compress.layers.attention import open_attention

if TYPE_CHECKING:
    from typing import Any, TypeVar

    ModuleT = TypeVar("ModuleT", bound=nn.Module)

__all__ = ["fold_weight_norm", "prepare", "replace_module", "share"]


def share(module: ModuleT) -> ModuleT:
    """Return a copy of a tree of modules that shares every tensor with the original.

    Exchanging or removing modules and parameters of the copy leaves the original as it is.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        # Also what is no parameter: the old weight norm keeps a computed weight as an attribute,
        # which cannot be copied while it is part of a graph of gradients.
        for value in _values(part):
            if isinstance(value, Tensor | threading.local):
                memo[id(value)] = value
    return copy.deepcopy(module, memo)


def prepare(root: nn.Module) -> nn.Module:
    """Fold weight norm and open attention below a module, in place; return it."""
    fold_weight_norm(root)
    open_attention(root)
    return root


def fold_weight_norm(root: nn.Module) -> int:
    """Replace weight norm, in both of torch's forms, by the weights it stands for, in place.

    Returns:
        How many modules had it.
    """
    count = 0
    for module in root.modules():
        hooks = module._forward_pre_hooks.items()  # noqa: SLF001  where the old form lives
        for key, hook in list(hooks):
            if isinstance(hook, WeightNorm):
                with torch.no_grad():
                    hook.remove(module)
                del module._forward_pre_hooks[key]  # noqa: SLF001
                count += 1
        for name in _normed(module):
            parametrize.remove_parametrizations(module, name)
            count += 1
    return count


def replace_module(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of that dotted name, in place."""
    parent, _, leaf = name.rpartition(".")
    holder = root.get_submodule(parent)
    setattr(holder, leaf, module.train(holder.training))


def _normed(module: nn.Module) -> list[str]:
    """Return the parameters that have weight norm in the new form, and nothing else, on them."""
    if not parametrize.is_parametrized(module):
        return []
    found = module.parametrizations.items()  # type: ignore[operator, union-attr]
    return [name for name, steps in found if [type(s) for s in steps] == [_WeightNorm]]


def _values(module: nn.Module) -> list[Any]:
    values = list(module.__dict__.values())
    for held in (module._parameters, module._buffers):  # noqa: SLF001
        values += held.values()
    return values
