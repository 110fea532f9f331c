"""A convolution whose output is only ever read in slices is several smaller convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.onnx.graph import copy_attributes, integer
from tts_compress.onnx.rewrite.extent import channel_bounds

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["split_convolutions"]


def split_convolutions(graph: Graph) -> int:
    """Split convolutions at the channels where their readers cut; return how many were split.

    Half of a WaveNet layer's channels go through tanh and half through a sigmoid: separate
    convolutions need no copy to be cut, and each half can have a quantization range of its own.
    Wanted: one group, constant weights, and only forward channel slices as readers.
    """
    split = 0
    for node in list(graph.nodes):
        weight = graph.constant(node.input[1]) if node.op_type == "Conv" else None
        if weight is None or integer(node, "group", 1) != 1 or node.output[0] in graph.outputs:
            continue
        parts = _parts(graph, node, weight.shape[0])
        if parts and (len(node.input) == 2 or graph.constant(node.input[2]) is not None):
            graph.remove(node)
            for reader, (begin, end) in parts:
                graph.remove(reader)
                _emit(graph, node, reader.output[0], begin, end)
            split += 1
    return split


def _parts(
    graph: Graph, node: onnx.NodeProto, channels: int
) -> list[tuple[onnx.NodeProto, tuple[int, int]]]:
    """Return the slices that read a convolution and their channels; empty unless all are."""
    parts = []
    for reader in graph.readers(node.output[0]):
        bounds = None
        if reader.op_type == "Slice" and reader.output[0] not in graph.outputs:
            bounds = channel_bounds(graph, reader, channels)
        if bounds is None or not _forward(graph, reader):
            return []
        parts.append((reader, bounds))
    # Overlapping slices would be computed twice.
    total = sum(end - begin for _, (begin, end) in parts)
    return parts if total <= channels else []


def _forward(graph: Graph, node: onnx.NodeProto) -> bool:
    return len(node.input) < 5 or graph.scalar(node.input[4]) == 1


def _emit(graph: Graph, node: onnx.NodeProto, output: str, begin: int, end: int) -> None:
    inputs = [node.input[0]]
    for position in range(1, len(node.input)):
        value = graph.constant(node.input[position])
        assert value is not None
        inputs.append(graph.add_constant(f"{node.input[position]}.{begin}", value[begin:end]))
    name = f"{node.name}.{begin}"
    graph.add("Conv", inputs, [output], name=name, **copy_attributes(node))
