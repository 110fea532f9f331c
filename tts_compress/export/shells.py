"""Copies of modules that share every tensor; changes in a copy do not reach the original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from tts_compress.layers.structure import share

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["copy_shell", "replace_modules"]


def copy_shell(module: nn.Module) -> nn.Module:
    """Return a copy in `eval` mode with weight norm folded; all other tensors are shared.

    Args:
        module: It is not changed.
    """
    shell = share(module).eval()
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
    hooks = module._forward_pre_hooks.values()  # noqa: SLF001  where the older kind lives
    for name in [hook.name for hook in hooks if isinstance(hook, WeightNorm)]:
        remove_weight_norm(module, name)


def _fold_parametrizations(module: nn.Module) -> None:
    """Fold weight norm of the newer kind, which makes the weight a property of the class.

    torch's own removal deletes that property from the class, which a copy shares with the original;
    so the copy gets its plain class back instead.
    """
    if not is_parametrized(module):
        return
    names: Any = module.parametrizations
    with torch.no_grad():
        weights = {name: getattr(module, name).detach().clone() for name in names}
    del module.parametrizations
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
