"""Which module of the original network an ONNX operator came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx

__all__ = ["WEIGHTED_OPERATORS", "initializer_names", "module_of"]

WEIGHTED_OPERATORS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Gather")
"""Operators that hold the trained weights of speech models."""

_PARAMETER = re.compile(r"^(?P<module>\w+(\.\w+)+)\.(weight|bias|weight_[gv]|gamma|beta)$")


def module_of(node: onnx.NodeProto, initializers: Collection[str]) -> str:
    """Return the dotted module name of an operator, or an empty string where nothing tells it.

    torch names operators by scope (`/dec/resblocks.0/convs.1/Conv`). Older exporters number them,
    but parameters that were not folded keep their names (`dec.resblocks.0.convs.1.bias`).
    """
    scope = node.name.strip("/").split("/")
    if len(scope) > 1:
        return ".".join(scope[:-1])
    for name in node.input:
        if name in initializers and (found := _PARAMETER.match(name)):
            return found["module"]
    return ""


def initializer_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of a graph's constant tensors."""
    return frozenset(tensor.name for tensor in graph.initializer)
