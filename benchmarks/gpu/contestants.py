"""FP32, what torch has of its own, and our schemes, each as something that runs once."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from tts_compress.progress import Silent
from tts_compress.recipes.family import find_recipe, schemes_of
from tts_compress.torch.convert import convert
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.networks.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A way to run a network."""

    name: str
    scheme: str | None = None
    """A scheme of ours, applied by the family's recipe."""

    autocast: torch.dtype | None = None
    """The type that torch itself brings products into, for the whole network."""

    tf32: bool = True
    """Let products of FP32 lose all but 10 bits of mantissa, as is usual on GPUs."""

    compiled: bool = False


_EAGER = (
    Contestant(name="fp32", tf32=False),
    Contestant(name="fp32 tf32"),
    Contestant(name="fp16 autocast", autocast=torch.float16),
    Contestant(name="bf16 autocast", autocast=torch.bfloat16),
    *(Contestant(name=scheme, scheme=scheme) for scheme in ("fp16", "bf16", "int8", "fp8")),
)

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        *_EAGER,
        *(replace(each, name=f"{each.name} compiled", compiled=True) for each in _EAGER),
    )
}
"""Contestants by name; the others are compared with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A contestant on its device."""

    contestant: Contestant
    root: nn.Module
    step: Callable[[], torch.Tensor]
    """Runs the network once; only inside of `arithmetic`."""

    device: torch.device

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute as the contestant does, and as before afterwards."""
        with _arithmetic(self.contestant, self.device):
            yield


def prepare_contestant(
    network: Network, root: nn.Module, contestant: Contestant, mode: str
) -> Prepared:
    """Return a contestant that is ready to run.

    Args:
        network: The network, which calls the root.
        root: In FP32, on its device; not changed.
        contestant: The contestant to prepare.
        mode: Mode of torch's compiler, for those that are compiled.

    Raises:
        TTSCompressError: The scheme cannot be applied there.
    """
    device = next(root.parameters()).device
    made = (
        copy_sharing_tensors(root)
        if contestant.scheme is None
        else _compressed(network, root, contestant)
    )
    if contestant.compiled:
        for child in made.children():
            child.compile(dynamic=False, mode=mode)
    placed = {name: _Placed(child, device) for name, child in made.named_children()}
    with _arithmetic(contestant, device):
        step = network.call(nn.ModuleDict(placed))
    return Prepared(contestant=contestant, root=made, step=step, device=device)


def _compressed(network: Network, root: nn.Module, contestant: Contestant) -> nn.Module:
    scheme = str(contestant.scheme)
    family = network.family if scheme in schemes_of(network.family) else "module"
    recipe = find_recipe(family, scheme)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table shows what was converted
        return convert(root, recipe, None, progress=Silent()).root


@contextmanager
def _arithmetic(contestant: Contestant, device: torch.device) -> Iterator[None]:
    """Set what products are computed in; convolutions have a switch of their own."""
    matrix, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if contestant.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = contestant.tf32
    try:
        with ExitStack() as stack:
            if contestant.autocast is not None:
                stack.enter_context(torch.autocast(device.type, contestant.autocast))
            yield
    finally:
        torch.set_float32_matmul_precision(matrix)
        torch.backends.cudnn.allow_tf32 = convolution


class _Placed(nn.Module):
    """Calls a module with its tensors on a device; those that come again are moved once.

    Networks are described with inputs on the CPU. What is no tensor is passed on as it is, because
    a module may change it, as it does a cache.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.module, self._device = module, device
        self._moved = WeakTensorKeyDictionary()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output."""
        moved = {name: self._move(value) for name, value in kwargs.items()}
        return self.module(*map(self._move, args), **moved)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device == self._device:
            return value
        if value not in self._moved:
            self._moved[value] = value.to(self._device)
        return self._moved[value]
