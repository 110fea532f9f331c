"""A HiFi-GAN generator of any size, and a toy to train (`toy.py`).

Everything runs in one thread: sums in another order round otherwise.
"""

import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    """Three pairs of convolutions around which the signal also passes unchanged."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.convs1, self.convs2 = (
            nn.ModuleList(
                weight_norm(nn.Conv1d(channels, channels, taps, padding="same", dilation=dilation))
                for dilation in dilations
            )
            for dilations in ((1, 3, 5), (1, 1, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a signal of the same shape."""
        for first, second in zip(self.convs1, self.convs2, strict=True):
            x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    """The generator of Kong et al. (2020), arXiv 2010.05646, with the published names."""

    def __init__(self, *, bands: int, channels: int, rates: Sequence[int]) -> None:
        super().__init__()
        widths = [channels // 2**i for i in range(len(rates) + 1)]
        self.conv_pre = weight_norm(nn.Conv1d(bands, channels, 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(wide, narrow, 2 * rate, rate, padding=rate // 2))
            for wide, narrow, rate in zip(widths, widths[1:], rates, strict=False)
        )
        self.resblocks = nn.ModuleList(
            Block(width, taps) for width in widths[1:] for taps in (3, 7, 11)
        )
        self.conv_post = weight_norm(nn.Conv1d(widths[-1], 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        """Return samples `[batch, 1, time]` of spectra `[batch, bands, frames]`."""
        x = self.conv_pre(mel)
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            blocks = self.resblocks[3 * stage : 3 * stage + 3]
            x = torch.stack([block(x) for block in blocks]).mean(0)
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


@pytest.fixture(scope="session")
def make_generator() -> Callable[..., nn.Module]:
    """Return a function that makes a seeded generator."""

    def make(*, bands: int = 10, channels: int = 32, rates: Sequence[int] = (4, 2)) -> nn.Module:
        torch.manual_seed(0)
        return Generator(bands=bands, channels=channels, rates=rates).eval()

    return make


@pytest.fixture(scope="session")
def toy_program() -> Path:
    """Return the toy as a program."""
    pytest.importorskip("accelerate")
    return Path(__file__).with_name("toy.py")


@pytest.fixture(scope="session")
def toy(toy_program: Path) -> Any:
    """Return the parts of that program."""
    return SimpleNamespace(**runpy.run_path(str(toy_program)))
