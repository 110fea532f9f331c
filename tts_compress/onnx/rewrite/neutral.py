"""Operations that change nothing: adding zeros, multiplying by ones of the same shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import numpy_helper

from tts_compress.onnx.rewrite.extent import Extents

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["drop_neutral"]


def drop_neutral(graph: Graph) -> int:
    """Drop additions of zeros and multiplications by ones that are made at run time.

    An exported WaveNet adds a zero speaker embedding to every layer, and a mean-only flow scales
    by exp(-0). Wanted: the filled tensor's shape is known to be that of the other operand, so that
    nothing is broadcast.

    Returns:
        How many operations were dropped.
    """
    extents, dropped = Extents(graph), 0
    for node in graph.nodes:
        neutral = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}.get(node.op_type)
        if neutral is None or node.output[0] in graph.outputs:
            continue
        kept = _other_operand(graph, extents, node, neutral)
        if kept is not None:
            graph.remove(node)
            graph.redirect(node.output[0], kept)
            dropped += 1
    return dropped


def _other_operand(
    graph: Graph, extents: Extents, node: onnx.NodeProto, neutral: float
) -> str | None:
    """Return the operand that equals the result, if the other one is neutral."""
    left, right = (str(tensor) for tensor in node.input)
    pairs = [(left, right)] if node.op_type in {"Sub", "Div"} else [(left, right), (right, left)]
    for kept, filled in pairs:
        if _fill_value(graph, filled) == neutral:
            shape, other = extents.of(filled), extents.of(kept)
            if shape == other and shape.channels is not None:
                return kept
    return None


def _fill_value(graph: Graph, tensor: str) -> float | None:
    """Return the one value a tensor made by ConstantOfShape is filled with."""
    node = graph.producer(tensor)
    if node is None:
        return None
    if node.op_type == "ConstantOfShape":
        values = [numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"]
        return float(values[0].reshape(-1)[0]) if values else 0.0
    if node.op_type in {"Neg", "Exp"}:
        inner = _fill_value(graph, node.input[0])
        if inner is not None:
            return -inner if node.op_type == "Neg" else math.exp(inner)
    return None
