"""Turns of axes that meet their opposite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.onnx.graph import copy_attributes, integers

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["cancel_transposes"]

_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Erf", "Relu", "Tanh", "Sigmoid"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
_TURN = (0, 2, 1)


def cancel_transposes(graph: Graph) -> int:
    """Take out turns between (B, C, T) and (B, T, C) that undo each other; return how many.

    Elementwise operators whose inputs have all been turned work on what was there before, and
    their result is turned: so turns move on until they meet their opposite, or stop.
    """
    cancelled = 0
    for node in list(graph.nodes):
        if _is_turn(node):
            before = _before(graph, node.input[0])
            if before is not None and node.output[0] not in graph.outputs:
                graph.remove(node)
                graph.redirect(node.output[0], before)
                cancelled += 1
        elif node.op_type in _ELEMENTWISE and node.output[0] not in graph.outputs:
            _move(graph, node)
    return cancelled


def _move(graph: Graph, node: onnx.NodeProto) -> None:
    """Let an elementwise operator work on what its inputs were before they were turned."""
    inputs = []
    for tensor in node.input:
        value = graph.constant(tensor)
        before = tensor if value is not None and value.size == 1 else _before(graph, tensor)
        if before is None:
            return
        inputs.append(before)
    if all(graph.constant(tensor) is not None for tensor in node.input):
        return
    output = node.output[0]
    graph.remove(node)
    made = graph.fresh(f"{output}.turned")
    attributes = copy_attributes(node) | {"domain": node.domain}
    graph.add(node.op_type, inputs, [made], node.name, **attributes)
    graph.add("Transpose", [made], [output], f"{made}/Transpose", perm=list(_TURN))


def _before(graph: Graph, tensor: str) -> str | None:
    """Return what a tensor was turned from, if it was."""
    node = graph.producer(tensor)
    return str(node.input[0]) if node is not None and _is_turn(node) else None


def _is_turn(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and integers(node, "perm") == _TURN
