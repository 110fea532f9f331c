"""The networks that are timed: how each is built, and one call of it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network: its construction, its component's name for the recipes, and its call."""

    name: str
    family: str
    summary: str
    make: Callable[[], nn.Module]
    """Builds it with random weights."""

    call: Callable[[nn.Module], Callable[[], torch.Tensor]]
    """Returns what runs a root of this kind once, after what is not timed is prepared."""

    official: Callable[[nn.Module], Callable[[], torch.Tensor]] | None = None
    """Returns what runs an uncompressed root as upstream does, where `call` does not: FP32."""

    blocks: Callable[[nn.Module], list[nn.Module]] | None = None
    """Returns the parts to compile one by one; the items of the largest list unless given."""

    def root(self) -> nn.Module:
        """Return it with seeded weights, all of which matter."""
        torch.manual_seed(0)
        root = self.make().eval()
        _fill_zeros(root)
        return root

    def blocks_of(self, root: nn.Module) -> list[nn.Module]:
        """Return the equal blocks of a root: they are alike, so a compiler translates one."""
        if self.blocks is not None:
            return self.blocks(root)
        lists = [part for part in root.modules() if isinstance(part, nn.ModuleList)]
        # The outermost of nested lists has the most modules.
        return list(max(lists, key=lambda part: len(list(part.modules()))).children())

    def skeleton(self) -> nn.Module:
        """Return it without memory for its weights, as loading builds it."""
        with _without_memory():
            return self.make().eval()


@contextmanager
def _without_memory() -> Iterator[None]:
    """Have parameters of modules that are built in the block lie on torch's `meta` device."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@torch.no_grad()
def _fill_zeros(root: nn.Module) -> None:
    """Give values to what training begins with as zeros, so that every layer matters."""
    for parameter in root.parameters():
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
