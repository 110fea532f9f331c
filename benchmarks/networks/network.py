"""The networks that are timed: how each is built, and one call of it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tts_compress.families import families
from tts_compress.plain import one_line

Step = Callable[[], torch.Tensor]
"""Runs a network once."""

Call = Callable[[Any], Step]
"""Returns what runs a root of a kind once, after what is not timed is prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network: its construction, its component's name for the recipes, and its call."""

    make: Callable[[], nn.Module]
    """Builds it with random weights."""

    call: Call
    official: Call | None = None
    """As `call`, of an uncompressed root as upstream runs it, where `call` does not: FP32."""

    blocks: Callable[[nn.Module], list[nn.Module]] | None = None
    """Returns the parts to compile one by one; the items of the largest list unless given."""

    called: tuple[str, ...] = ()
    """Modules that `call` calls, with inputs on their device; unless given it calls the children of
    a root, with inputs on the CPU."""

    name: str = ""
    family: str = ""
    summary: str = ""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All contestants of a network; the first is FP32."""

    network: str
    summary: str
    parameters: int
    contestants: tuple[Any, ...]


def result_of(network: Network, root: nn.Module, contestants: Iterable[Any]) -> Result:
    """Return the result of contestants on a network."""
    return Result(
        network=network.name,
        summary=network.summary,
        parameters=sum(parameter.numel() for parameter in root.parameters()),
        contestants=tuple(contestants),
    )


NETWORKS: dict[str, Callable[[], Network]] = {}
"""Builders of networks by name; importing `architectures`, `clones` and `pocket` fills them in."""


def network(
    name: str, family: str, summary: str
) -> Callable[[Callable[[], Network]], Callable[[], Network]]:
    """Register a function that returns a network, which imports its packages.

    The registered one raises `MissingExtraError` where a package is not installed, and `ModelError`
    where the network runs from a clone and none is named.
    """

    def register(build: Callable[[], Network]) -> Callable[[], Network]:
        def find() -> Network:
            torch.manual_seed(1)  # of its inputs
            try:
                return replace(build(), name=name, family=family, summary=summary)
            except ImportError as error:
                raise families()[family].missing(error) from error

        NETWORKS[name] = find
        return find

    return register


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


def snr_db(reference: torch.Tensor, candidate: torch.Tensor) -> float | None:
    """Return the SNR of an output against another; None where they are equal or not finite."""
    error = (reference - candidate).double().square().mean()
    if not error or not torch.isfinite(error):
        return None
    return float(10 * torch.log10(reference.double().square().mean() / error))


def failure(error: Exception) -> str:
    """Return what is reported of a contestant that failed."""
    return one_line(f"{type(error).__name__}: {error}", 300)
