"""Torch modules of random layers, compressed, called and compared with the original."""

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.fuzz.compare import DisagreementError, check_agreement
from benchmarks.fuzz.graphs import untrained_schemes
from benchmarks.fuzz.mutate import Kind
from tts_compress import load_module, save_module
from tts_compress.compression import compress
from tts_compress.recipes.recipe import find_recipe

_TIME = 12


class _Chain(nn.Module):
    """Layers, and functions between them, one after the other."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))
        self._steps = [None if isinstance(step, nn.Module) else step for step in steps]

    def forward(self, x: torch.Tensor) -> Any:
        """Return the last output."""
        layers = iter(self.layers)
        for step in self._steps:
            x = (step or next(layers))(x)
        return x


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2)


def _linear(dice: random.Random, channels: int) -> Any:
    layer = nn.Linear(channels, dice.choice((1, 24, 64)), bias=dice.random() < 0.7)
    return _turned, layer, _turned


def _convolution(dice: random.Random, channels: int) -> Any:
    group = dice.choice((1, 1, 2, channels))
    kernel, dilation = dice.choice((1, 3, 5)), dice.choice((1, 1, 2))
    padding = dice.choice((dilation * (kernel - 1) // 2, "same", 0))
    mode = dice.choice(("zeros", "zeros", "reflect", "replicate", "circular"))
    more: dict[str, Any] = {"dilation": dilation, "padding": padding, "padding_mode": mode}
    more |= {"groups": group, "bias": dice.random() < 0.7}
    if dice.random() < 0.2:
        flat = nn.Conv2d(channels, 2 * group * 8, kernel, **more)
        return (lambda x: x.unsqueeze(-1).expand(*x.shape, _TIME)), flat
    stride = 1 if padding == "same" else dice.choice((1, 1, 2))
    return (nn.Conv1d(channels, 2 * group * 8, kernel, stride=stride, **more),)


def _upsampling(dice: random.Random, channels: int) -> Any:
    stride, group = dice.choice((1, 2, 3)), dice.choice((1, 1, 2))
    more: dict[str, Any] = {"stride": stride, "padding": dice.choice((0, 1)), "groups": group}
    return (nn.ConvTranspose1d(channels, 32, 2 * stride + 1, **more),)


def _recurrent(dice: random.Random, channels: int) -> Any:
    kind, hidden = dice.choice((nn.LSTM, nn.GRU, nn.RNN)), dice.choice((16, 32))
    more = {"num_layers": dice.choice((1, 2)), "bidirectional": dice.random() < 0.4}
    return _turned, kind(channels, hidden, batch_first=True, **more), lambda out: out[0]


def _joined(dice: random.Random, channels: int) -> Any:
    """Return a convolution and a linear layer along channels, as most TTS systems have."""
    layer = nn.Conv1d(channels, 32, 3, padding=1)
    return layer, _turned, nn.Linear(32, dice.choice((8, 40)))


def _transposed(dice: random.Random, channels: int) -> Any:
    from transformers.pytorch_utils import Conv1D

    # It takes a view of its input, which a transposed one does not have.
    return (lambda x: _turned(x).contiguous()), Conv1D(dice.choice((16, 40)), channels)


def _attention(dice: random.Random, channels: int) -> Any:
    layer = nn.TransformerEncoderLayer(channels, 2, 2 * channels, 0.0, batch_first=True)
    return _turned, layer, nn.LayerNorm(channels) if dice.random() < 0.5 else _turned


def _looked_up(dice: random.Random, channels: int) -> Any:
    table = nn.Embedding(50, channels, padding_idx=dice.choice((None, 0)))
    return (lambda x: (8 * x[:, 0]).abs().long() % 50), table, nn.Linear(channels, 16)


_LAYERS: tuple[Callable[[random.Random, int], Any], ...] = (
    *(_linear, _convolution, _convolution, _upsampling, _recurrent),
    *(_joined, _transposed, _attention, _looked_up),
)


def _call(folder: Path, dice: random.Random) -> Iterator[None]:
    yield  # nothing is written
    torch.manual_seed(dice.randrange(1 << 30))
    torch.set_num_threads(1)
    channels, scheme = dice.choice((16, 24, 64)), dice.choice(untrained_schemes("module"))
    kinds = (torch.float32,) * 6 + (torch.float64, torch.float16, torch.bfloat16)
    dtype = dice.choice(kinds)
    net: Any = _Chain(*dice.choice(_LAYERS)(dice, channels)).eval().to(dtype)
    if dice.random() < 0.1:
        dtype, net = torch.complex64, torch.nn.Linear(channels, 16, dtype=torch.complex64)
    batch = torch.randn(dice.choice((1, 1, 3)), channels, _TIME, dtype=dtype)
    if dtype.is_complex:
        batch = batch.transpose(1, 2)
    needs = find_recipe("module", scheme).calibration is not None
    small: Any = compress(net, scheme, calibration=[batch] if needs else None)
    call = batch[:0] if dice.random() < 0.1 else batch
    with torch.no_grad():
        expected = list(_arrays(net(call)))
        actual = list(_arrays(small(call)))
        check_agreement(expected, actual, scheme)
        if dice.random() < 0.3:
            again = load_module(copy.deepcopy(net), save_module(small, folder / "net.safetensors"))
            if any((a != b).any() for a, b in zip(actual, _arrays(again(call)), strict=True)):
                raise DisagreementError(f"{scheme}: its file returns something else")


def _arrays(outputs: Any) -> Iterator[Any]:
    """Yield arrays of tensors in tuples; numpy has no bfloat16, which float32 holds."""
    if isinstance(outputs, torch.Tensor):
        wide = outputs.float() if outputs.dtype == torch.bfloat16 else outputs
        yield wide.detach().numpy()
    else:
        for output in outputs:
            yield from _arrays(output)


KINDS = {"layer": Kind(10, _call)}
