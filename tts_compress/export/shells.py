"""Copies of modules that share every tensor; changes in a copy do not reach the original."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["copy_shell", "replace_modules"]


def copy_shell(module: nn.Module) -> nn.Module:
    """Return a copy in `eval` mode, with weight norm folded into plain weights.

    Modules are copied, tensors are shared, so that a large network is not held twice.

    Args:
        module: It is not changed.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers, part.__dict__):  # noqa: SLF001
            for value in held.values():
                # Weights that weight norm computed are no leaves, which copying refuses;
                # what a thread keeps for itself cannot be copied at all.
                if isinstance(value, torch.Tensor):
                    memo[id(value)] = value
                elif isinstance(value, threading.local):
                    memo[id(value)] = None
    shell = copy.deepcopy(module, memo).eval()
    for part in shell.modules():
        _fold_hooks(part)
        _fold_parametrizations(part)
    return shell


def replace_modules(shell: nn.Module, kind: str, make: Callable[[Any], nn.Module]) -> None:
    """Replace every module whose class has a name, whichever package it is from.

    Args:
        shell: A copy; it is changed.
        kind: The class's name.
        make: Returns what stands in for a module.
    """
    for parent in list(shell.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == kind:
                setattr(parent, name, make(child))


def _fold_hooks(module: nn.Module) -> None:
    """Fold weight norm of the older kind, which computes the weight before each call."""
    from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

    hooks = module._forward_pre_hooks.values()  # noqa: SLF001
    for name in [hook.name for hook in hooks if isinstance(hook, WeightNorm)]:
        remove_weight_norm(module, name)


def _fold_parametrizations(module: nn.Module) -> None:
    """Fold weight norm of the newer kind, which makes the weight a property of the class.

    torch's own removal deletes that property from the class, which the copy shares with the given
    module; so the copy gets its plain class back instead.
    """
    from torch.nn.utils.parametrize import is_parametrized

    if not is_parametrized(module):
        return
    names = list(module.parametrizations)  # type: ignore[arg-type]  # a ModuleDict
    with torch.no_grad():
        weights = {name: getattr(module, name).detach().clone() for name in names}
    del module.parametrizations
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
