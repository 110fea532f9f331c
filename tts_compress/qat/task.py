"""The interface between models and the trainer: tasks and their examples."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Outputs: TypeAlias = tuple[Tensor, ...]

_HELD_OUT = 8
"""Number of texts or calls of which one is held out; at least one is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One training example.

    Examples of equal shapes are joined along the first axis of their tensors, the batch, where that
    axis is equally long in all tensors of an example.
    """

    inputs: tuple[Tensor, ...]
    """Inputs of the student."""

    targets: Outputs
    """The teacher's outputs for them, in the order of the student's."""

    def each(self, change: Callable[[Tensor], Tensor]) -> "Example":
        """Return the example with every tensor changed."""
        inputs, targets = (tuple(map(change, part)) for part in (self.inputs, self.targets))
        return Example(inputs=inputs, targets=targets)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTask:
    """A student, its examples, and its loss.

    Everything here is deterministic: a task that is made again, of the same parts and seed, has
    the same examples in the same order, so that a training that was interrupted can go on.
    """

    student: nn.Module
    """The module that is trained; it holds `FakeQuantize` modules and returns a tuple."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    """The examples that the student is judged on; none of them is trained on."""

    loss: Callable[[Outputs, Example], Mapping[str, Tensor]]
    """Returns the terms of the loss by name, each a scalar, for outputs of the student and the
    example, or several joined; their sum is what training lowers."""

    converted: Callable[[Any], Callable[..., Outputs]] | None = None
    """Returns, for the student with any values, a function that computes the artifact's outputs
    from a student's inputs. None where the student itself is judged."""


def held_out_indices(count: int) -> list[int]:
    """Return the indices of the texts or calls that a student is judged on, rising."""
    return list(range(_HELD_OUT - 1, count, _HELD_OUT)) or [count - 1]


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """Return a hash that equal tensors have in common."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        values = tensor.detach().cpu().contiguous()
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
