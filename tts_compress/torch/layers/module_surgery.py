"""Changes to a tree of modules: copies that share tensors, and replaced modules."""

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from tts_compress.errors import QuantizationError
from tts_compress.torch.layers.attention import open_attention
from tts_compress.torch.layers.snake import replace_snake
from tts_compress.torch.layers.transposed_linear import replace_transposed

_REPLACEMENTS: tuple[Callable[[nn.Module], nn.Module | None], ...] = (
    open_attention,
    replace_snake,
    replace_transposed,
)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_sharing_tensors(
    module: ModuleT, copied: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> ModuleT:
    """Return a copy of a tree of modules that shares every tensor with the original.

    Replacing or removing modules and parameters of the copy leaves the original as it is.

    Args:
        module: The root of the tree.
        copied: Returns the tensor that the copy has in place of the original's, once for each.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        # Also attributes: the old weight norm keeps a computed weight as one, which cannot be
        # copied while it is part of a graph of gradients.
        own = (vars(part), part._parameters, part._buffers)  # noqa: SLF001
        for value in (value for held in own for value in held.values()):
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = copied(value)
            elif isinstance(value, threading.local):
                memo[id(value)] = value
    return copy.deepcopy(module, memo)


def normalize(root: nn.Module) -> nn.Module:
    """Fold weight norm, and replace what hides its layers by modules of ours; return the root.

    Works in place. The module's outputs stay the same.
    """
    holder = nn.ModuleList([root])  # the module may itself be one of those
    fold_weight_norm(holder)
    for parent in list(holder.modules()):
        for name, child in list(parent.named_children()):
            replaced = (replace(child) for replace in _REPLACEMENTS)
            if (ours := next(filter(None, replaced), None)) is not None:
                refuse_hooks(child, name)
                setattr(parent, name, ours.train(child.training))
    return holder[0]


def refuse_hooks(module: nn.Module, name: str) -> None:
    """Refuse a module that is to be exchanged, and calls functions that the new one would not.

    Raises:
        QuantizationError: It has hooks.
    """
    if module._forward_hooks or module._forward_pre_hooks:  # noqa: SLF001  there is no other way
        raise QuantizationError(
            f"'{name}' has forward hooks, which its compressed layer would lose; remove them, or "
            "exclude the layer in the recipe"
        )


def fold_weight_norm(root: nn.Module) -> None:
    """Replace weight norm, in both of torch's forms, by the weights it computes, in place."""
    for module in root.modules():
        hooks = module._forward_pre_hooks.items()  # noqa: SLF001  where the old form lives
        for key, hook in list(hooks):
            if isinstance(hook, WeightNorm):
                with torch.no_grad():
                    hook.remove(module)
                del module._forward_pre_hooks[key]  # noqa: SLF001
        if parametrize.is_parametrized(module):
            _fold_parametrizations(module)


def replace_module(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Replace the module of a dotted name, under every name it is held by, in place.

    Returns:
        The root, or the module if it replaces the root itself (an empty name).
    """
    if not name:
        return module.train(root.training)
    replaced = root.get_submodule(name)
    for holder in list(root.modules()):
        for leaf, child in list(holder._modules.items()):  # noqa: SLF001  also repeated ones
            if child is replaced:
                setattr(holder, leaf, module.train(holder.training))
    return root


def _fold_parametrizations(module: nn.Module) -> None:
    """Give a module with weight norm alone its computed weights, and its class back.

    `parametrize.remove_parametrizations` takes the property that computes a weight from the class,
    which copies share with their original: removing it from one breaks the other.
    """
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    kinds = [[type(step) for step in steps.children()] for steps in parametrizations.children()]
    if any(kind != [_WeightNorm] for kind in kinds):
        return
    weights = {name: getattr(module, name).detach() for name in parametrizations}
    del module._modules["parametrizations"]  # noqa: SLF001  its own attribute access is overridden
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
