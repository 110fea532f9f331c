"""What is known of a tensor's shape from structure alone: channels, and whose time axis it shares.

Exported voices have dynamic lengths, and the standard shape inference forgets them at the first
convolution. Rewrites only need to know that two tensors (B, C, T) are equally long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.onnx.graph import integer, integers, is_automatic

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["Extent", "Extents", "channel_slice"]

_UNARY = frozenset(
    {"Identity", "Cast", "Neg", "Exp", "Relu", "LeakyRelu", "Tanh", "Sigmoid", "Erf", "Sqrt"}
)
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})


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
        """Return what is known of a tensor."""
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
            channels = channel_slice(self._graph, node, first.channels)
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


def channel_slice(graph: Graph, node: onnx.NodeProto, channels: int | None) -> int | None:
    """Return how many channels a Slice keeps, or None where it cuts another axis or is unclear."""
    bounds = channel_bounds(graph, node, channels)
    return None if bounds is None else bounds[1] - bounds[0]


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
