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
    from tts_compress.layers.base import CompressedLayer, operator_of

    operators: Counter[str] = Counter()
    parameters = size = 0
    inside: tuple[str, ...] = ()  # of a compressed layer, which speaks for what it consists of
    for inner, part in module.named_modules():
        if inner.startswith(inside):
            continue
        if isinstance(part, CompressedLayer):
            inside = (*inside, f"{inner}.")
            operator: str | None = part.geometry.operator
            parameters += math.prod(part.geometry.shape)
            stored = [value for key, value in part.state().items() if key != "bias"]
        else:
            operator = operator_of(part)
            stored = _weights(part) if operator else []
            # Weight norm keeps directions and, far fewer, lengths.
            parameters += max((tensor.numel() for tensor in stored), default=0)
        if operator:
            operators[operator] += 1
        width = widths.get(f"{name}.{inner}" if inner else name)
        size += sum(tensor.numel() * (width or tensor.element_size()) for tensor in stored)
    return Component(
        name=name, role=role, parameters=parameters, size_bytes=size, operators=operators
    )


def _weights(module: nn.Module) -> list[Tensor]:
    """Return what a file keeps of an operator's weight; of weight norm, both parts of it."""
    from torch.nn.utils import parametrize

    if parametrize.is_parametrized(module, "weight"):
        return list(module.get_submodule("parametrizations.weight").parameters())
    return [module.get_parameter("weight")]
