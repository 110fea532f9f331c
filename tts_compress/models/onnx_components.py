"""What weights the parts of an ONNX graph hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.models.base import Component
from tts_compress.onnx.modules import WeightFinder, initializer_names, module_of

if TYPE_CHECKING:
    import onnx

__all__ = ["UNNAMED", "find_components"]

UNNAMED = "unnamed"
"""Where operators are counted whose module nothing tells."""


def find_components(graph: onnx.GraphProto) -> dict[str, Component]:
    """Return the components that hold weights, by name, in the order they first appear.

    A component is the first part of its modules' names.
    """
    weights = WeightFinder(graph)
    initializers = initializer_names(graph)
    operators: dict[str, Counter[str]] = {}
    tensors: dict[str, dict[str, onnx.TensorProto]] = {}
    for node in graph.node:
        weight = weights.find(node)
        if weight is not None:
            name = module_of(node, initializers).split(".")[0] or UNNAMED
            operators.setdefault(name, Counter())[node.op_type] += 1
            tensors.setdefault(name, {})[weight.name] = weight
    return {
        name: Component(
            name=name,
            role="",
            parameters=sum(int(np.prod(tensor.dims)) for tensor in held.values()),
            size_bytes=sum(tensor.ByteSize() for tensor in held.values()),
            operators=operators[name],
        )
        for name, held in tensors.items()
    }
