"""Runs a compressed module on the processor that runs this file.

`python torch_player.py INPUTS OUTPUT MODULE [OUTPUT MODULE …]`: inputs as `torch.save` writes them,
where the outputs go to in the same form, and what `save_module` wrote.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from tts_compress import load_module

CHANNELS = 512


class Stack(nn.Module):
    """Two linear layers and two convolutions, as wide as those of large systems."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(CHANNELS, CHANNELS) for _ in range(2))
        self.conv = nn.ModuleList(nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor `[batch, channels, time]` of one `[batch, time, channels]`."""
        for linear in self.linear:
            x = torch.relu(linear(x))
        x = x.transpose(1, 2)
        for conv in self.conv:
            x = conv(torch.relu(x))
        return x


def _play(inputs: torch.Tensor, output: str, module: str) -> None:
    with torch.inference_mode():
        torch.save(load_module(Stack(), module)(inputs), output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    first, *others = sys.argv[1:]
    rest = iter(others)
    for job in zip(rest, rest, strict=True):
        _play(torch.load(first), *job)
