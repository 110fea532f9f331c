"""Which examples are learned from when: by seed and step alone, so that anyone can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tts_compress.qat.task import Example

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

__all__ = ["batch_places", "joined", "spread"]


def batch_places(count: int, size: int, step: int, seed: int) -> list[int]:
    """Return the places of the examples of one update.

    Every example is met once before any is met again, in an order that differs each time.

    Args:
        count: Examples there are.
        size: Examples of an update.
        step: Number of the update, from 0.
        seed: Of the order.
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


def joined(examples: Sequence[Example]) -> Iterator[tuple[Example, int]]:
    """Yield batches of the examples whose shapes are equal, each with how many it holds."""
    groups: dict[object, list[Example]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(_kind(example, number), []).append(example)
    for group in groups.values():
        yield _join(group), len(group)


def spread(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of `count` places, evenly spread."""
    taken = min(count, wanted)
    return [(2 * i + 1) * count // (2 * taken) for i in range(taken)]


def _kind(example: Example, number: int) -> object:
    tensors = (*example.inputs, *example.targets)
    if any(tensor.dim() == 0 for tensor in tensors):
        return number  # it has no batch to be joined along
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


def _join(group: Sequence[Example]) -> Example:
    if len(group) == 1:
        return group[0]
    return Example(
        inputs=_stacked([example.inputs for example in group]),
        targets=_stacked([example.targets for example in group]),
    )


def _stacked(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(column) for column in zip(*rows, strict=True))
