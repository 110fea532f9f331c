"""What weights the parts of a Parler-TTS model hold, compressed or not."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from tts_compress.models.base import Component

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from tts_compress.artifact import LayerRecord

__all__ = ["find_components"]

_ROLES = {
    "text_encoder": "description encoder",
    "enc_to_dec_proj": "projection of the description",
    "embed_prompts": "text embedding",
    "decoder": "speech language model",
    "audio_encoder": "audio codec",
}


def find_components(root: nn.Module, layers: Sequence[LayerRecord]) -> dict[str, Component]:
    """Return the components of the official object, by name, in the order data flows.

    Args:
        root: The official object.
        layers: What was decided for its modules; some only say how a file stores them.
    """
    children = dict(root.named_children())
    halved = {layer.module: 2 for layer in layers if layer.weights in {"float16", "bfloat16"}}
    return {
        name: _count(name, role, children[name], halved)
        for name, role in _ROLES.items()
        if name in children
    }


def _count(name: str, role: str, module: nn.Module, widths: Mapping[str, int]) -> Component:
    from tts_compress.layers.base import CompressedLayer

    operators: Counter[str] = Counter()
    parameters = size = 0
    inside: tuple[str, ...] = ()  # of a compressed layer, which speaks for what it consists of
    for inner, part in module.named_modules():
        if inner.startswith(inside):
            continue
        if isinstance(part, CompressedLayer):
            inside = (*inside, f"{inner}.")
            operators[part.geometry.operator] += 1
            parameters += math.prod(part.geometry.shape)
            stored = [value for key, value in part.state().items() if key != "bias"]
        elif "parametrizations" in inner.split("."):
            continue  # counted with the module whose weight they make
        else:
            stored = _weights(part)
            parameters += sum(tensor.numel() for tensor in stored)
            operators[type(part).__name__.removeprefix("Parametrized")] += bool(stored)
        width = widths.get(f"{name}.{inner}" if inner else name)
        size += sum(tensor.numel() * (width or tensor.element_size()) for tensor in stored)
    return Component(
        name=name, role=role, parameters=parameters, size_bytes=size, operators=+operators
    )


def _weights(module: nn.Module) -> list[Tensor]:
    """Return a module's own tensors that are matrices.

    Biases, norms, scales and the like extend in one direction only, whatever their shape.
    """
    from torch.nn.utils import parametrize

    held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if parametrize.is_parametrized(module):
        held += module.get_submodule("parametrizations").parameters()
    return [tensor for tensor in held if sum(length > 1 for length in tensor.shape) > 1]
