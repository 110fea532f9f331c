"""Counts and sizes of the weights in the components of a module, compressed or not."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn.utils import parametrize

from tts_compress.artifact import LayerRecord
from tts_compress.models.base import Component
from tts_compress.torch.layers.base import CompressedLayer, walk_layers
from tts_compress.torch.layers.geometry import Geometry, operator_of, weights_of


def find_components(
    root: nn.Module, roles: Mapping[str, str], layers: Sequence[LayerRecord] = ()
) -> dict[str, Component]:
    """Return the components that hold weights, by name.

    Args:
        root: Holds them under their dotted names.
        roles: Role of each one, in the order data flows; those the root lacks are left out.
        layers: Decisions for its layers; some only state how a file stores them.
    """
    modules = dict(root.named_modules())
    widths = {layer.module: 2 for layer in layers if layer.weights in {"float16", "bfloat16"}}
    found = {
        name: _count(name, role, modules[name], widths)
        for name, role in roles.items()
        if name in modules
    }
    return {name: component for name, component in found.items() if component.parameters}


def _count(name: str, role: str, module: nn.Module, widths: Mapping[str, int]) -> Component:
    operators: Counter[str] = Counter()
    parameters = size = 0
    for inner, part in walk_layers(module):
        if isinstance(part, CompressedLayer):
            operator = part.geometry.operator
            parameters += math.prod(part.geometry.shape)
            stored = [value for key, value in part.state().items() if key != "bias"]
        elif (plain := operator_of(part)) is not None:
            operator, stored = plain, _weights(part)
            parameters += math.prod(Geometry.of(part).shape)
        else:
            continue
        operators[operator] += 1
        width = widths.get(f"{name}.{inner}" if inner else name)
        size += sum(tensor.numel() * (width or tensor.element_size()) for tensor in stored)
    return Component(
        name=name, role=role, parameters=parameters, size_bytes=size, operators=operators
    )


def _weights(module: nn.Module) -> list[Tensor]:
    """Return the tensors that a file stores for an operator's weight; two with weight norm."""
    if parametrize.is_parametrized(module, "weight"):
        return list(module.get_submodule("parametrizations.weight").parameters())
    return weights_of(module)
