"""What is differentiated: the student's loss on examples, as one module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tts_compress.qat.task import Example
from tts_compress.qat.train.batches import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.qat.task import Task

__all__ = ["TrainingObjective"]


class TrainingObjective(nn.Module):
    """The loss of a task; one call of it is one call for DDP, however many batches it takes.

    Args:
        task: Its student is the only part with parameters.
        device: Where examples are moved to.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        super().__init__()
        self.student = task.student
        self._task = task
        self._device = device

    def forward(self, examples: Sequence[Example], count: int | None = None) -> dict[str, Tensor]:
        """Return the terms of the loss, FP32, each the mean over examples.

        Args:
            examples: Those of equal shapes are computed at once.
            count: How many there are, where these are a part of them.
        """
        totals: dict[str, Tensor] = {}
        for batch, size in joined(examples):
            moved = self._moved(batch)
            outputs = self.student(*moved.inputs)
            # Whatever the student computes in, differences are taken in FP32.
            with torch.autocast(self._device.type, enabled=False):
                exact = tuple(o.float() if o.is_floating_point() else o for o in outputs)
                terms = self._task.loss(exact, moved)
            for name, term in terms.items():
                share = term * (size / (count or len(examples)))
                totals[name] = totals[name] + share if name in totals else share
        return totals

    def _moved(self, example: Example) -> Example:
        return Example(
            inputs=tuple(tensor.to(self._device) for tensor in example.inputs),
            targets=tuple(tensor.to(self._device) for tensor in example.targets),
        )
