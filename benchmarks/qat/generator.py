"""HiFi-GAN's generator in torch, by the names of the published checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

if TYPE_CHECKING:
    from pathlib import Path

_SLOPE = 0.1
_RATES = (8, 8, 2, 2)
_TAPS = (3, 7, 11)
_DILATIONS = (1, 3, 5)


class _Residual(nn.Module):
    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()

        def layer(dilation: int) -> nn.Module:
            plain = nn.Conv1d(channels, channels, taps, padding="same", dilation=dilation)
            normed: nn.Module = weight_norm(plain)
            return normed

        self.convs1 = nn.ModuleList(layer(dilation) for dilation in _DILATIONS)
        self.convs2 = nn.ModuleList(layer(1) for _ in _DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.convs1, self.convs2, strict=True):
            inner = first(functional.leaky_relu(x, _SLOPE))
            x = x + second(functional.leaky_relu(inner, _SLOPE))
        return x


class _Generator(nn.Module):
    """V2 of Kong et al. (2020), arXiv 2010.05646; 0.9 million weights."""

    def __init__(self) -> None:
        super().__init__()
        widths = [128 // 2**stage for stage in range(len(_RATES) + 1)]
        self.conv_pre = weight_norm(nn.Conv1d(80, widths[0], 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(
                nn.ConvTranspose1d(
                    widths[i], widths[i + 1], 2 * rate, stride=rate, padding=rate // 2
                )
            )
            for i, rate in enumerate(_RATES)
        )
        self.resblocks = nn.ModuleList(
            _Residual(width, taps) for width in widths[1:] for taps in _TAPS
        )
        self.conv_post = weight_norm(nn.Conv1d(widths[-1], 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        """Return samples `(B, 1, 256 · T)` of log mel spectra `(B, 80, T)`."""
        x = self.conv_pre(mel)
        for stage, up in enumerate(self.ups):
            x = up(functional.leaky_relu(x, _SLOPE))
            blocks = self.resblocks[len(_TAPS) * stage : len(_TAPS) * (stage + 1)]
            x = torch.stack([block(x) for block in blocks]).mean(dim=0)
        return torch.tanh(self.conv_post(functional.leaky_relu(x)))


def load_generator(checkpoint: Path) -> nn.Module:
    """Return the generator of a published V2 checkpoint, in `eval` mode."""
    network = _Generator()
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["generator"]
    network.load_state_dict(state)
    return network.eval()
