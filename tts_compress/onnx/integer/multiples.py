"""Divisors of lengths: what upsampling by whole factors leaves behind."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from tts_compress.onnx.graph import integer, integers, is_automatic
from tts_compress.onnx.rewrite.upsample import phase_convolution

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["find_multiples"]

_ELEMENTWISE = frozenset(
    {"Identity", "LeakyRelu", "Relu", "Tanh", "Sigmoid", "Neg", "Exp"}
    | {"Add", "Sub", "Mul", "Div", "Sum"}
)


def find_multiples(graph: Graph) -> dict[str, int]:
    """Return a divisor of T of every tensor (B, C, T) of which one above 1 is known."""
    known: dict[str, int] = {}
    for node in graph.nodes:
        multiple = _multiple(graph, node, known)
        if multiple > 1:
            known[node.output[0]] = multiple
    return known


def _multiple(graph: Graph, node: onnx.NodeProto, known: dict[str, int]) -> int:
    """Return a divisor of the length of what a node makes."""
    if node.op_type in {"Conv", "ConvTranspose"}:
        return _factor(graph, node, known.get(node.input[0], 1))
    if node.op_type in _ELEMENTWISE or (node.op_type == "Concat" and integer(node, "axis", 0) == 1):
        data = [tensor for tensor in node.input if graph.constant(tensor) is None]
        return gcd(*(known.get(tensor, 1) for tensor in data))
    return 1


def _factor(graph: Graph, node: onnx.NodeProto, before: int) -> int:
    weight = graph.constant(node.input[1])
    if weight is None or weight.ndim != 3 or is_automatic(node):
        return 1
    if node.op_type == "ConvTranspose":
        phases = phase_convolution(node, weight)
        return 1 if phases is None else before * phases.stride
    (dilation,) = integers(node, "dilations", [1])
    same = sum(integers(node, "pads", [0, 0])) == dilation * (weight.shape[2] - 1)
    return before if same and integers(node, "strides", [1]) == (1,) else 1
