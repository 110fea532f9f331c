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

from tts_compress.torch.layers.attention import open_attention
from tts_compress.torch.layers.snake import replace_snakes

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
    """Fold weight norm, open attention and exchange Snake below a module, in place; return it.

    None of it changes what the module computes.
    """
    holder = nn.ModuleList([root])  # the module may itself be one of those
    fold_weight_norm(holder)
    open_attention(holder)
    replace_snakes(holder)
    return holder[0]


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
        if _is_normed(module):
            _fold_parametrizations(module)
            count += 1
    return count


def replace_module(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module in the place of the one of that dotted name, in place.

    One that is held under several names is replaced under all of them.

    Returns:
        The root, or the module if it takes the root's own place (an empty name).
    """
    if not name:
        return module.train(root.training)
    replaced = root.get_submodule(name)
    for holder in list(root.modules()):
        for leaf, child in list(holder._modules.items()):  # noqa: SLF001  also repeated ones
            if child is replaced:
                setattr(holder, leaf, module.train(holder.training))
    return root


def _is_normed(module: nn.Module) -> bool:
    """Return whether a module has weight norm in the new form, and no other parametrization."""
    if not parametrize.is_parametrized(module):
        return False
    found = module.parametrizations.values()  # type: ignore[operator]
    return all([type(step) for step in steps] == [_WeightNorm] for steps in found)


def _fold_parametrizations(module: nn.Module) -> None:
    """Give a parametrized module its computed weights, and its class back.

    `parametrize.remove_parametrizations` takes the property that computes a weight from the class,
    which copies share with their original: removing it from one breaks the other.
    """
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    weights = {name: getattr(module, name).detach() for name in parametrizations}
    del module._modules["parametrizations"]  # noqa: SLF001  its own attribute access is overridden
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight, requires_grad=False))


def _values(module: nn.Module) -> list[Any]:
    values = list(module.__dict__.values())
    for held in (module._parameters, module._buffers):  # noqa: SLF001
        values += held.values()
    return values
