"""FP32, what torch has of its own, and our schemes, each as something that runs once."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from benchmarks.networks.contestants import make_scheme
from benchmarks.networks.network import Network, Step
from tts_compress.recipes.family import schemes_of
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors


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
    step: Step
    """Runs the network once; only inside of `arithmetic`."""

    device: torch.device

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context that computes as the contestant does."""
        return _arithmetic(self.contestant, self.device)


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
    device, scheme = next(root.parameters()).device, contestant.scheme
    if scheme is None:
        own = copy_sharing_tensors(root)
    else:
        family = "" if scheme in schemes_of(network.family) else "module:"
        own = make_scheme(network, root, family + scheme).root
    if contestant.compiled:
        for child in own.children():
            child.compile(dynamic=False, mode=mode)
    placed = {name: _Placed(child, device) for name, child in own.named_children()}
    with _arithmetic(contestant, device):
        step = network.call(nn.ModuleDict(placed))
    return Prepared(contestant=contestant, root=own, step=step, device=device)


@contextmanager
def _arithmetic(contestant: Contestant, device: torch.device) -> Iterator[None]:
    """Compute as a contestant does, and as before afterwards; convolutions have a switch."""
    matrix, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if contestant.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = contestant.tf32
    kind = contestant.autocast
    try:
        with nullcontext() if kind is None else torch.autocast(device.type, kind):
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
