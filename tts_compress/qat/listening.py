"""Calling a module with tensors alone, and hearing what its parts answer."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.recorded_calls import compared_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.utils._pytree import TreeSpec

    from tts_compress.models.distillation import Objective

    Call = tuple[tuple[Any, ...], dict[str, Any]]

__all__ = ["Listening", "Signature"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signature:
    """All about the arguments of a call but the tensors among them."""

    spec: TreeSpec
    leaves: tuple[Any, ...]
    """With None in the places of tensors."""

    places: tuple[int, ...]
    """Of the tensors among the leaves."""

    @staticmethod
    def of(calls: Sequence[Call]) -> Signature:
        """Return what calls have in common.

        Raises:
            RecipeError: They differ in more than their tensors, or have none.
        """
        found = [_signature(call) for call in calls]
        first = found[0]
        if not first.places:
            raise RecipeError("a batch holds no tensor; give what the module is called with")
        for number, other in enumerate(found):
            if not other.equals(first):
                raise RecipeError(
                    f"batch {number} and batch 0 differ in more than the values of their tensors; "
                    "give all of one structure, with the same other arguments"
                )
        return first

    def equals(self, other: Signature) -> bool:
        """Return whether calls of both differ in nothing but the values of their tensors."""
        return (self.spec, self.leaves, self.places) == (other.spec, other.leaves, other.places)

    def tensors(self, call: Call) -> tuple[Tensor, ...]:
        """Return the tensors of a call that has this signature, in order."""
        leaves, _ = tree_flatten(call)
        return tuple(leaves[place] for place in self.places)

    def call(self, tensors: Sequence[Tensor]) -> Call:
        """Return arguments and keywords."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        call: Call = tree_unflatten(leaves, self.spec)
        return call


def _signature(call: Call) -> Signature:
    leaves, spec = tree_flatten(call)
    places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    others = tuple(None if i in places else leaf for i, leaf in enumerate(leaves))
    return Signature(spec=spec, leaves=others, places=places)


class Listening(nn.Module):
    """A module that takes the tensors of a call, and returns those that objectives compare.

    Args:
        module: Teacher or student.
        signature: Of the calls.
        objectives: Name modules below it.

    Raises:
        ModelError: There is no module of such a name.
    """

    def __init__(
        self, module: nn.Module, signature: Signature, objectives: Sequence[Objective]
    ) -> None:
        super().__init__()
        self.module = module
        self.lengths: tuple[int, ...] = ()
        """How many tensors belong to each objective, of the last call."""

        self._signature = signature
        self._objectives = tuple(objectives)
        for objective in objectives:
            _find(module, objective)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the compared tensors of all objectives, in order.

        Raises:
            ModelError: A module was not called once, or returned no such tensors.
        """
        arguments, keywords = self._signature.call(tensors)
        inner = [o for o in self._objectives if o.module]
        with _hearing(self.module, inner) as heard:
            heard[""] = [self.module(*arguments, **keywords)]
        compared = [compared_outputs(o, _once(o, heard)) for o in self._objectives]
        self.lengths = tuple(len(outputs) for outputs in compared)
        return tuple(tensor for outputs in compared for tensor in outputs)


def _find(root: nn.Module, objective: Objective) -> nn.Module:
    if objective.method != "forward":
        raise ModelError(
            f"'{objective.module}.{objective.method}' cannot be heard inside of a module; only "
            "what 'forward' returns can"
        )
    try:
        return root.get_submodule(objective.module)
    except AttributeError as error:
        raise ModelError(f"the module has no part '{objective.module}': {error}") from error


@contextmanager
def _hearing(root: nn.Module, objectives: Sequence[Objective]) -> Iterator[dict[str, list[Any]]]:
    """Collect what modules answer while they run, by name."""
    heard: dict[str, list[Any]] = {objective.module: [] for objective in objectives}

    def hook_for(name: str) -> Any:
        return lambda _module, _inputs, output: heard[name].append(output)

    hooks = [_find(root, o).register_forward_hook(hook_for(o.module)) for o in objectives]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def _once(objective: Objective, heard: dict[str, list[Any]]) -> Any:
    answers = heard[objective.module]
    if len(answers) != 1:
        raise ModelError(
            f"'{objective.module}' was called {len(answers)} times in one call of the whole; name "
            "a module that is called once"
        )
    return answers[0]
