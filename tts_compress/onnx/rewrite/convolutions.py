"""Convolutions that take over what stands around them: padding, slices, sums of projections."""

import numpy as np
import onnx

from tts_compress.onnx.graph import (
    Array,
    Graph,
    copy_attributes,
    integer,
    integers,
    is_automatic,
    text,
)
from tts_compress.onnx.rewrite.eliminate_identity import channel_bounds


def fold_padding(graph: Graph) -> int:
    """Fold Pad nodes into the convolutions that read them; return how many were folded.

    Required: constant, non-negative amounts of zeros along time only, and no reader but
    convolutions that state their own padding.
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


def split_convolutions(graph: Graph) -> int:
    """Split convolutions at the channels where their readers cut; return how many were split.

    Half of a WaveNet layer's channels go through tanh and half through a sigmoid: separate
    convolutions need no copy to be cut, and each half can have a quantization range of its own.
    Required: one group, constant weights, and only forward channel slices as readers.
    """
    split = 0
    for node in list(graph.nodes):
        weight = graph.constant(node.input[1]) if node.op_type == "Conv" else None
        if weight is None or integer(node, "group", 1) != 1 or node.output[0] in graph.outputs:
            continue
        parts = _slices(graph, node, weight.shape[0])
        if parts and (len(node.input) == 2 or graph.constant(node.input[2]) is not None):
            graph.remove(node)
            for reader, (begin, end) in parts:
                graph.remove(reader)
                _emit_slice(graph, node, reader.output[0], begin, end)
            split += 1
    return split


def merge_pointwise(graph: Graph) -> int:
    """Merge a pointwise convolution with those whose sum it reads; return how many it did.

    A WaveNet adds up its layers' skip outputs and projects the sum. Both steps are linear, so the
    layers' inputs, side by side, times one matrix give the same: fewer products, fewer roundings.
    Required: constant weights, nobody else reads the parts, and the merged matrix is no larger.
    """
    merged = 0
    for node in list(graph.nodes):
        matrix = _matrix(graph, node)
        leaves = _summands(graph, node.input[0]) if matrix is not None else []
        matrices = [_matrix(graph, leaf) for leaf in leaves]
        if matrix is None or len(leaves) < 2 or any(m is None for m in matrices):
            continue
        parts = [m for m in matrices if m is not None]
        if sum(part.size for part in parts) + matrix.size > matrix.shape[0] * sum(
            part.shape[1] for part in parts
        ):
            _emit_merged(graph, node, leaves, matrix, parts)
            merged += 1
    return merged


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


def _slices(
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


def _emit_slice(graph: Graph, node: onnx.NodeProto, output: str, begin: int, end: int) -> None:
    inputs = [node.input[0]]
    for position in range(1, len(node.input)):
        value = graph.value(node.input[position])
        inputs.append(graph.add_constant(f"{node.input[position]}.{begin}", value[begin:end]))
    name = f"{node.name}.{begin}"
    graph.add("Conv", inputs, [output], name=name, **copy_attributes(node))


def _emit_merged(
    graph: Graph,
    node: onnx.NodeProto,
    leaves: list[onnx.NodeProto],
    matrix: Array,
    parts: list[Array],
) -> None:
    stem = node.output[0]
    # Products in float64: the merged weights are rounded once.
    wide = matrix.astype(np.float64)
    weight = np.concatenate([wide @ part for part in parts], axis=1)
    bias = _bias(graph, node, len(matrix)).astype(np.float64)
    for leaf, part in zip(leaves, parts, strict=True):
        bias = bias + wide @ _bias(graph, leaf, len(part))
    graph.remove(node)
    joined = graph.fresh(f"{stem}.parts")
    graph.add("Concat", [leaf.input[0] for leaf in leaves], [joined], axis=1)
    inputs = [
        joined,
        graph.add_constant(f"{stem}.merged", weight[:, :, None].astype(np.float32)),
        graph.add_constant(f"{stem}.merged_bias", bias.astype(np.float32)),
    ]
    graph.add("Conv", inputs, [stem], name=node.name, kernel_shape=[1])


def _summands(graph: Graph, tensor: str) -> list[onnx.NodeProto]:
    """Return the nodes whose sum a tensor is; empty where a part has another reader."""
    node = graph.producer(tensor)
    if node is None or graph.only_reader(tensor) is None:
        return []
    if node.op_type != "Add":
        return [node]
    sides = [_summands(graph, side) for side in node.input]
    return [leaf for side in sides for leaf in side] if all(sides) else []


def _matrix(graph: Graph, node: onnx.NodeProto) -> Array | None:
    """Return the matrix (C_out, C_in) of a plain pointwise convolution along time, else None."""
    weight = graph.constant(node.input[1]) if node.op_type == "Conv" else None
    if weight is None or weight.ndim != 3 or weight.shape[2] != 1:
        return None
    plain = integer(node, "group", 1) == 1 and not is_automatic(node)
    plain = plain and integers(node, "strides", [1]) == (1,) and not any(integers(node, "pads"))
    constant = len(node.input) == 2 or graph.constant(node.input[2]) is not None
    return weight[:, :, 0] if plain and constant else None


def _bias(graph: Graph, node: onnx.NodeProto, channels: int) -> Array:
    value = graph.constant(node.input[2]) if len(node.input) > 2 else None
    return np.zeros(channels, np.float32) if value is None else value
