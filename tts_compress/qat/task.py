"""What is trained on what: the seam between modules that learn and the loop that trains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["Example", "Task"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One thing to learn; the first axis of every tensor is the batch, if only of one.

    Examples whose tensors have equal shapes can be joined along it.
    """

    inputs: tuple[Tensor, ...]
    """What the student is called with."""

    targets: tuple[Tensor, ...]
    """What the teacher answered to them, in the order of the student's outputs."""


@runtime_checkable
class Task(Protocol):
    """A student, what it learns from, and how far it is from having learnt it.

    Everything here is deterministic: a task that is made again, of the same parts and seed, has
    the same examples in the same order, so that a training that was interrupted can go on.
    """

    @property
    def student(self) -> nn.Module:
        """What learns; it holds `FakeQuantize` modules, and returns a tuple of tensors."""

    def train_examples(self) -> Sequence[Example]:
        """Return what the student is trained on."""

    def held_out_examples(self) -> Sequence[Example]:
        """Return what it is judged on and never trained on; none of it is among the others."""

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        """Return the terms of the loss by name, each a scalar; their sum is what training lowers.

        Args:
            outputs: What the student answered to the example's inputs.
            example: One of this task's, or several joined.
        """
