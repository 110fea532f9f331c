"""Sums that leave the integers are added up as real numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer.region import find_region

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx


__all__ = ["make_sums_real"]


def make_sums_real(
    model: onnx.ModelProto, convolutions: frozenset[str]
) -> tuple[onnx.ModelProto, int]:
    """Return an equal model in which no sum behind the last integer convolutions is on codes.

    The end of a residual network adds up streams that are loud where the voice is, and hardly a
    few steps high where it pauses: three roundings, of a convolution's result, of its sum with the
    stream and of the sum of streams, are most of the noise that is heard. None has to be. The
    chain of `Add` becomes one `Sum`, which computes on real numbers only, and convolutions that
    only it reads answer in real numbers at once.

    Args:
        model: A graph in FP32; it is not changed.
        convolutions: Outputs of those that compute on codes.

    Returns:
        The model, and how many sums were made real.

    Raises:
        QuantizationError: A planned convolution is not there or has no integer form.
    """
    graph = Graph(model)
    nodes = find_region(graph, convolutions).nodes
    leading = _leading(nodes, convolutions)
    last = [n for n in nodes if n.op_type == "Add" and n.output[0] not in leading]
    ends = {node.output[0] for node in last}
    made = 0
    for node in last:
        reader = graph.only_reader(node.output[0])
        if reader is not None and reader.output[0] in ends:
            continue  # a part of that sum
        leaves = _leaves(graph, node, ends)
        graph.remove(node)
        graph.add("Sum", leaves, [node.output[0]], name=node.name)
        made += 1
    graph.sweep()
    return graph.finish(), made


def _leading(nodes: Sequence[onnx.NodeProto], convolutions: frozenset[str]) -> set[str]:
    """Return the tensors whose codes a planned convolution needs."""
    found: set[str] = set()
    for node in reversed(nodes):
        if node.output[0] in found or node.output[0] in convolutions:
            found.update(node.input)
    return found


def _leaves(graph: Graph, node: onnx.NodeProto, ends: set[str]) -> list[str]:
    """Return the summands of a sum, also of those sums that only it reads."""
    found: list[str] = []
    for tensor in node.input:
        maker = graph.producer(tensor)
        if maker is not None and tensor in ends and graph.only_reader(tensor) is not None:
            found += _leaves(graph, maker, ends)
        else:
            found.append(tensor)
    return found
