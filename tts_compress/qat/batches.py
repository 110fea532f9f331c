"""Choice of the examples of an update, by seed and step alone, and their loss."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from tts_compress.qat.task import Example, Task


def batch_places(count: int, size: int, step: int, seed: int) -> list[int]:
    """Return the places of the examples of one update.

    Every example is met once before any is met again, in an order that differs each time.

    Args:
        count: Examples there are.
        size: Examples of an update.
        step: Number of the update, from 0.
        seed: Seed of the order.
    """
    orders: dict[int, list[int]] = {}
    places = []
    for position in range(step * size, (step + 1) * size):
        turn, place = divmod(position, count)
        if turn not in orders:
            source = torch.Generator().manual_seed(seed * 1_000_003 + turn)
            orders[turn] = torch.randperm(count, generator=source).tolist()
        places.append(orders[turn][place])
    return places


def spread(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of `count` places, evenly spread."""
    taken = min(count, wanted)
    return [(2 * i + 1) * count // (2 * taken) for i in range(taken)]


def joined(examples: Sequence[Example]) -> Iterator[tuple[Example, int]]:
    """Yield batches of the examples whose shapes are equal, each with how many it holds."""
    groups: dict[object, list[Example]] = {}
    for number, example in enumerate(examples):
        tensors = (*example.inputs, *example.targets)
        key: object = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if any(tensor.dim() == 0 for tensor in tensors):
            key = number  # it has no batch axis to be joined along
        groups.setdefault(key, []).append(example)
    for group in groups.values():
        batch = group[0]
        if len(group) > 1:
            batch = Example(
                inputs=_concatenated([example.inputs for example in group]),
                targets=_concatenated([example.targets for example in group]),
            )
        yield batch, len(group)


def _concatenated(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(column) for column in zip(*rows, strict=True))


class TrainingLoss(nn.Module):
    """The loss of a task; one call of it is one call for DDP, however many batches it takes.

    Args:
        task: Defines the loss.
        student: The task's, a copy of it, or what it is converted to.
        device: Device that examples are moved to.
    """

    def __init__(
        self, task: Task, student: Callable[..., tuple[Tensor, ...]], device: torch.device
    ) -> None:
        super().__init__()
        self.student = student
        self._task = task
        self._device = device

    def forward(self, examples: Sequence[Example], count: int) -> dict[str, Tensor]:
        """Return the terms of the loss, FP32, each the sum over examples divided by `count`.

        Args:
            examples: Those of equal shapes are computed at once.
            count: Number of all examples, where these are a part of them.
        """
        totals: dict[str, Tensor] = {}
        for batch, size in joined(examples):
            moved = Example(
                inputs=tuple(tensor.to(self._device) for tensor in batch.inputs),
                targets=tuple(tensor.to(self._device) for tensor in batch.targets),
            )
            outputs = self.student(*moved.inputs)
            # Whatever the student computes in, differences are taken in FP32.
            with torch.autocast(self._device.type, enabled=False):
                exact = tuple(o.float() if o.is_floating_point() else o for o in outputs)
                terms = self._task.loss(exact, moved)
            for name, term in terms.items():
                share = term * (size / count)
                totals[name] = totals[name] + share if name in totals else share
        return totals
