"""The moving average of what is learned: it wanders less than what it averages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

__all__ = ["Average", "copied", "put"]


class Average:
    """An exponential moving average of a module's trainable parameters.

    Its memory is short at first, so that the beginning is forgotten soon.

    Args:
        module: Whose parameters, as they are now.
        share: Of the past, in the long run.
    """

    def __init__(self, module: nn.Module, share: float) -> None:
        self.values = copied(module)
        self._share = share

    @torch.no_grad()
    def add(self, module: nn.Module, step: int) -> None:
        """Move towards what a module is after an update, numbered from 0."""
        share = min(self._share, (1 + step) / (10 + step))
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self.values[name].lerp_(parameter, 1 - share)

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Have a module compute with the average for the length of a block."""
        kept = copied(module)
        put(module, self.values)
        try:
            yield
        finally:
            put(module, kept)


@torch.no_grad()
def copied(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's trainable parameters by their names."""
    return {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}


@torch.no_grad()
def put(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give a module's trainable parameters other values, in place."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(values[name])
