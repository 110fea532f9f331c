"""Elimination of operations that change nothing: adding zeros, multiplying by ones.

They are found where two tensors are known to have one shape. Exported voices have dynamic lengths,
and the standard shape inference forgets them at the first convolution; here it is enough to know
from the graph's structure which tensors (B, C, T) share a time axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import numpy_helper

from tts_compress.onnx.graph import integer, integers, is_automatic

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["channel_bounds", "eliminate_identity"]

_UNARY = frozenset(
    {"Identity", "Cast", "Neg", "Exp", "Relu", "LeakyRelu", "Tanh", "Sigmoid", "Erf", "Sqrt"}
)
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})


def eliminate_identity(graph: Graph) -> int:
    """Drop additions of zeros and multiplications by ones that are made at run time.

    An exported WaveNet adds a zero speaker embedding to every layer, and a mean-only flow scales
    by exp(-0). Required: the filled tensor's shape is known to be that of the other operand, so
    that nothing is broadcast.

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


@dataclass(frozen=True, slots=True)
class Extent:
    """The shape of a tensor (B, C, T) as far as it is known."""

    channels: int | None
    time: str
    """Name of a tensor with the same B and T."""


class Extents:
    """Extents of a graph's tensors, worked out on demand; stale once the graph is edited."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[str, Extent] = {}

    def of(self, tensor: str) -> Extent:
        """Return the known extent of a tensor."""
        # Walk back iteratively: chains are longer than Python's stack is deep.
        pending = [tensor]
        while pending:
            current = pending[-1]
            node = self._graph.producer(current)
            sources = () if node is None else self._sources(node)
            unknown = [s for s in sources if s not in self._known]
            if current in self._known or not unknown:
                self._known.setdefault(current, self._derive(current, node, sources))
                pending.pop()
            else:
                pending.extend(unknown)
        return self._known[tensor]

    def _sources(self, node: onnx.NodeProto) -> Sequence[str]:
        """Return the inputs a node's extent is derived from."""
        if node.op_type in _UNARY or node.op_type in {"Slice", "Split"}:
            return [node.input[0]]
        if node.op_type in _BINARY:
            return [t for t in node.input if self._graph.constant(t) is None]
        if node.op_type == "Conv":
            return [node.input[0]]
        if node.op_type == "Concat":
            return list(node.input)
        if node.op_type == "ConstantOfShape":
            shape = self._graph.producer(node.input[0])
            if shape is not None and shape.op_type == "Shape" and _whole(shape):
                return [shape.input[0]]
        return []

    def _derive(self, tensor: str, node: onnx.NodeProto | None, sources: Sequence[str]) -> Extent:
        unknown = Extent(None, tensor)
        if node is None or not sources:
            return unknown
        first, *others = (self._known[source] for source in sources)
        channels = first.channels
        if node.op_type in _BINARY:
            return self._broadcast(node, first, others, unknown)
        if node.op_type == "Conv":
            return self._convolved(node, first, unknown)
        if node.op_type == "Slice":
            bounds = channel_bounds(self._graph, node, first.channels)
            channels = None if bounds is None else bounds[1] - bounds[0]
        elif node.op_type == "Split":
            channels = self._split(node, tensor)
        elif node.op_type == "Concat":
            channels = _joined(node, [first, *others])
        # Without channels it may be another axis that changed.
        return unknown if channels is None else Extent(channels, first.time)

    def _split(self, node: onnx.NodeProto, tensor: str) -> int | None:
        sizes = self._graph.constant(node.input[1]) if len(node.input) > 1 else None
        if integer(node, "axis", 0) != 1 or sizes is None:
            return None
        return int(sizes[list(node.output).index(tensor)])

    def _broadcast(
        self, node: onnx.NodeProto, first: Extent, others: list[Extent], unknown: Extent
    ) -> Extent:
        if others:
            return first if others[0] == first and first.channels is not None else unknown
        fixed = next(t for t in node.input if self._graph.constant(t) is not None)
        return first if self._graph.scalar(fixed) is not None else unknown

    def _convolved(self, node: onnx.NodeProto, source: Extent, unknown: Extent) -> Extent:
        weight = self._graph.constant(node.input[1])
        if weight is None or weight.ndim != 3 or is_automatic(node):
            return unknown
        (dilation,) = integers(node, "dilations", [1])
        same = sum(integers(node, "pads", [0, 0])) == dilation * (weight.shape[2] - 1)
        if not same or integers(node, "strides", [1]) != (1,):
            return unknown
        return Extent(int(weight.shape[0]), source.time)


def channel_bounds(
    graph: Graph, node: onnx.NodeProto, channels: int | None
) -> tuple[int, int] | None:
    """Return the channels [begin, end) a Slice or reversal keeps of (B, C, T), if that is clear."""
    values = [graph.constant(tensor) for tensor in node.input[1:]]
    if channels is None or len(values) < 3 or any(v is None or v.size != 1 for v in values):
        return None
    begin, end, axis, *rest = (int(v.reshape(-1)[0]) for v in values if v is not None)
    step = rest[0] if rest else 1
    if axis not in {1, -2} or step not in {1, -1}:
        return None
    kept = range(channels)[begin:end:step]
    return (min(kept), max(kept) + 1) if kept else None


def _joined(node: onnx.NodeProto, parts: list[Extent]) -> int | None:
    widths = [part.channels for part in parts if part.channels is not None]
    same = len(widths) == len(parts) and len({part.time for part in parts}) == 1
    return sum(widths) if same and integer(node, "axis", 0) == 1 else None


def _whole(shape: onnx.NodeProto) -> bool:
    """Return whether a Shape node returns every dimension."""
    return integer(shape, "start", 0) == 0 and not any(a.name == "end" for a in shape.attribute)


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
