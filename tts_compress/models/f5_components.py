"""What weights the parts of an F5-TTS model hold, compressed or not."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from tts_compress.models.base import Component

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

__all__ = ["find_components"]

_ROLES = {
    "transformer.text_embed": "text encoder",
    "transformer.time_embed": "time embedding",
    "transformer.audio_embed": "input embedding",
    "transformer.input_embed": "input embedding",
    "transformer.transformer_blocks": "diffusion transformer",
    "transformer.layers": "diffusion transformer",
    "transformer.long_skip_connection": "skip connection",
    "transformer.norm_out": "output modulation",
    "transformer.proj_out": "output projection",
    "vocoder": "vocoder",
}
"""Of every backbone's parts, in the order data flows."""


def find_components(root: nn.Module, stored: Mapping[str, int]) -> dict[str, Component]:
    """Return the components that hold weights, by name, in the order data flows.

    Args:
        root: Holds `transformer` and `vocoder`.
        stored: Bytes per weight in the file, by name, of layers that have other ones in memory.
    """
    modules = dict(root.named_modules())
    found = {
        name: _count(name, role, modules[name], stored)
        for name, role in _ROLES.items()
        if name in modules
    }
    return {name: component for name, component in found.items() if component.parameters}


def _count(name: str, role: str, module: nn.Module, stored: Mapping[str, int]) -> Component:
    from tts_compress.layers.base import CompressedLayer

    operators: Counter[str] = Counter()
    parameters = size = 0
    inside: tuple[str, ...] = ()  # a compressed layer speaks for what it consists of
    for part_name, part in module.named_modules(prefix=name):
        if part_name.startswith(inside):
            continue
        if isinstance(part, CompressedLayer):
            inside = (*inside, f"{part_name}.")
            operators[part.geometry.operator] += 1
            parameters += math.prod(part.geometry.shape)
            size += sum(tensor.nbytes for key, tensor in part.state().items() if key != "bias")
            continue
        # Biases, norms and scales extend in one direction only, whatever their shape.
        weights = [p for p in part.parameters(recurse=False) if sum(n > 1 for n in p.shape) > 1]
        count = sum(weight.numel() for weight in weights)
        parameters += count
        size += count * stored.get(part_name, weights[0].element_size() if weights else 0)
        operators[type(part).__name__] += bool(weights)
    return Component(
        name=name, role=role, parameters=parameters, size_bytes=size, operators=+operators
    )
