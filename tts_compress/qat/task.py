"""The interface between models and the trainer: tasks, their examples, calls as tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One training example; the first axis of every tensor is the batch, if only of one.

    Examples whose tensors have equal shapes can be joined along it.
    """

    inputs: tuple[Tensor, ...]
    """Inputs of the student."""

    targets: tuple[Tensor, ...]
    """The teacher's outputs for them, in the order of the student's."""


@runtime_checkable
class Task(Protocol):
    """A student, its examples, and its loss.

    Everything here is deterministic: a task that is made again, of the same parts and seed, has
    the same examples in the same order, so that a training that was interrupted can go on.
    """

    @property
    def student(self) -> nn.Module:
        """The module that is trained; it holds `FakeQuantize` modules and returns a tuple."""

    def train_examples(self) -> Sequence[Example]:
        """Return the examples that the student is trained on."""

    def held_out_examples(self) -> Sequence[Example]:
        """Return the examples that the student is judged on; none of them is trained on."""

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        """Return the terms of the loss by name, each a scalar; their sum is what training lowers.

        Args:
            outputs: Outputs of the student for the example's inputs.
            example: One of this task's, or several joined.
        """


@runtime_checkable
class ConvertedTask(Task, Protocol):
    """A task whose student is judged by what it is converted to."""

    def converted(self, student: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
        """Return a function that computes, from a student's inputs, the artifact's outputs.

        Args:
            student: The task's own, with any values.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSignature:
    """The arguments of a call without the values of its tensors."""

    spec: TreeSpec
    leaves: tuple[Any, ...]
    """Leaves of the arguments, with None in the places of tensors."""

    places: tuple[int, ...]
    """Positions of the tensors among the leaves."""

    @staticmethod
    def of(call: Arguments) -> "CallSignature":
        """Return the signature of a call, given as arguments and keywords."""
        leaves, spec = tree_flatten(call)
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        others = tuple(None if i in places else leaf for i, leaf in enumerate(leaves))
        return CallSignature(spec=spec, leaves=others, places=places)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CallSignature":
        return self  # immutable; copying a tree's structure warns

    def tensors(self, call: Arguments) -> tuple[Tensor, ...]:
        """Return the tensors of a call that has this signature, in order."""
        leaves, _ = tree_flatten(call)
        return tuple(leaves[place] for place in self.places)

    def call(self, tensors: Sequence[Tensor]) -> Arguments:
        """Return arguments and keywords with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        call: Arguments = tree_unflatten(leaves, self.spec)
        return call
