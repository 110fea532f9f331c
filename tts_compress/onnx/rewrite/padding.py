"""Zeros put before a convolution are padding that the convolution can do itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.onnx.graph import (
    copy_attributes,
    integers,
    is_automatic,
    text,
)

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Graph

__all__ = ["fold_padding"]


def fold_padding(graph: Graph) -> int:
    """Fold Pad nodes into the convolutions that read them; return how many were folded.

    Wanted: constant, non-negative amounts of zeros along time only, and no reader but convolutions
    that state their own padding.
    """
    folded = 0
    for node in list(graph.nodes):
        amounts = _time_padding(graph, node) if node.op_type == "Pad" else None
        readers = graph.readers(node.output[0]) if amounts is not None else []
        if not readers or node.output[0] in graph.outputs or not all(map(_accepts, readers)):
            continue
        graph.remove(node)
        for reader in readers:
            assert amounts is not None
            own = integers(reader, "pads", [0, 0])
            total = [mine + more for mine, more in zip(own, amounts, strict=True)]
            attributes = copy_attributes(reader) | {"pads": total}
            graph.remove(reader)
            inputs = [node.input[0], *reader.input[1:]]
            graph.add("Conv", inputs, list(reader.output), name=reader.name, **attributes)
        folded += 1
    return folded


def _time_padding(graph: Graph, node: onnx.NodeProto) -> tuple[int, int] | None:
    """Return the zeros put before and behind the last of three axes, or None for anything else."""
    pads = graph.constant(node.input[1]) if len(node.input) > 1 else None
    if pads is None or pads.size != 6 or text(node, "mode", "constant") != "constant":
        return None
    if len(node.input) > 2 and node.input[2] and graph.scalar(node.input[2]) != 0:
        return None
    begin, end = int(pads[2]), int(pads[5])
    plain = not pads[[0, 1, 3, 4]].any() and begin >= 0 and end >= 0
    return (begin, end) if plain and len(node.input) < 4 else None


def _accepts(node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" and not is_automatic(node)
