"""Copies of modules that share every tensor; changes in a copy do not reach the original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.torch.layers.structure import fold_weight_norm, share

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["copy_shell", "replace_modules"]


def copy_shell(module: nn.Module) -> nn.Module:
    """Return a copy in `eval` mode with weight norm folded; all other tensors are shared.

    Args:
        module: It is not changed.
    """
    shell = share(module).eval()
    fold_weight_norm(shell)
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
