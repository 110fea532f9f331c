"""The implementations of torch's integer kernels for linear layers, timed on this processor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.turns import take_turns
from tts_compress.targets import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from tts_compress.progress import Progress

__all__ = ["SHAPES", "measure_torch"]

SHAPES = ((1, 1024, 4096), (1, 4096, 1024), (64, 1024, 1024), (512, 1024, 2048), (512, 2048, 1024))
"""Rows, inputs and outputs: of decoders that see one step, and of transformers that see all."""

_LAYERS = 12
"""Run one after the other, so that no weight is in a cache when its turn comes."""


def measure_torch(rounds: int, progress: Progress) -> list[Figures]:
    """Return what each implementation took per layer; nothing where torch is not installed."""
    try:
        import torch
    except ImportError:
        return []
    engines = [e for e in ("fbgemm", "onednn") if e in torch.backends.quantized.supported_engines]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    for done, (rows, inputs, outputs) in enumerate(SHAPES):
        progress.advance("torch kernels", done, len(SHAPES))
        shape = f"linear layer, {rows} rows, {inputs} inputs, {outputs} outputs"
        us = _time_in_turns(engines, (rows, inputs, outputs), max(rounds // max(rows // 32, 1), 5))
        found.append(Figures(choice="torch_linear", shape=shape, us=us))
    progress.advance("torch kernels", len(SHAPES), len(SHAPES))
    torch.set_num_threads(before)
    return found


def _time_in_turns(
    engines: Sequence[str], shape: tuple[int, int, int], rounds: int
) -> dict[str, float]:
    import torch
    from torch import nn

    from tts_compress.layers.base import Geometry
    from tts_compress.layers.integer import Int8Linear

    rows, inputs, outputs = shape
    geometry = Geometry.of(nn.Linear(inputs, outputs, bias=False, device="meta"))
    state = {
        "weight": torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8),
        "weight_scale": torch.full((outputs,), 0.01),
    }
    values = torch.randn(rows, inputs)
    stacks = {
        engine: [Int8Linear(geometry, state, engine) for _ in range(_LAYERS)] for engine in engines
    }
    with torch.inference_mode():
        times = take_turns(
            {engine: partial(_run, stack, values) for engine, stack in stacks.items()},
            rounds=rounds,
        )
    return {engine: round(min(ms) * 1e3 / _LAYERS, 1) for engine, ms in times.items()}


def _run(stack: Sequence[nn.Module], values: Tensor) -> None:
    for layer in stack:
        layer(values)
