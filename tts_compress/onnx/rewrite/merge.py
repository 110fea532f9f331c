"""A pointwise convolution of a sum of pointwise convolutions is one pointwise convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tts_compress.onnx.graph import integer, integers, is_automatic

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Array, Graph

__all__ = ["merge_pointwise"]


def merge_pointwise(graph: Graph) -> int:
    """Merge a pointwise convolution with those whose sum it reads; return how many it did.

    A WaveNet adds up its layers' skip outputs and projects the sum. Both steps are linear, so the
    layers' inputs, side by side, times one matrix give the same: fewer products, fewer roundings.
    Wanted: constant weights, nobody else reads the parts, and the merged matrix is no larger.
    """
    merged = 0
    for node in list(graph.nodes):
        matrix = _matrix(graph, node)
        leaves = _leaves(graph, node.input[0]) if matrix is not None else []
        matrices = [_matrix(graph, leaf) for leaf in leaves]
        if matrix is None or len(leaves) < 2 or any(m is None for m in matrices):
            continue
        parts = [m for m in matrices if m is not None]
        if sum(part.size for part in parts) + matrix.size > matrix.shape[0] * sum(
            part.shape[1] for part in parts
        ):
            _emit(graph, node, leaves, matrix, parts)
            merged += 1
    return merged


def _emit(
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


def _leaves(graph: Graph, tensor: str) -> list[onnx.NodeProto]:
    """Return the nodes whose sum a tensor is; empty where a part has another reader."""
    node = graph.producer(tensor)
    if node is None or graph.only_reader(tensor) is None:
        return []
    if node.op_type != "Add":
        return [node]
    sides = [_leaves(graph, side) for side in node.input]
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
