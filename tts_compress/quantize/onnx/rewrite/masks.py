"""Masks of ones: a voice speaks one utterance at a time, so nothing of it is padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.quantize.onnx.rewrite.graph import integer

if TYPE_CHECKING:
    import onnx

    from tts_compress.quantize.onnx.rewrite.graph import Graph

__all__ = ["drop_masks", "single_utterance"]


def drop_masks(graph: Graph) -> int:
    """Drop multiplications by the mask of valid frames; return how many were dropped.

    A frame is valid while its number is below the utterance's length, and there are as many frames
    as the longest utterance has. With one utterance that is all of them. Wanted, therefore: every
    graph input that has a batch axis has it fixed to 1 (see `single_utterance`).
    """
    if not _single(graph):
        return 0
    dropped = 0
    for node in graph.nodes:
        if node.op_type == "Mul" and len(node.output) == 1:
            left, right = node.input
            masks = [_is_mask(graph, left), _is_mask(graph, right)]
            if any(masks) and node.output[0] not in graph.outputs:
                graph.remove(node)
                graph.redirect(node.output[0], left if masks[1] else right)
                dropped += 1
    return dropped


def single_utterance(graph: Graph) -> int:
    """Fix the batch axis of every input and output to one utterance; return how many were open.

    Programs that speak with Piper voices never pass more.
    """
    fixed = 0
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_param == "batch_size":
            dims[0].dim_value = 1
            fixed += 1
    return fixed


def _single(graph: Graph) -> bool:
    batches = [
        value.type.tensor_type.shape.dim[0]
        for value in graph.model.graph.input
        if len(value.type.tensor_type.shape.dim) > 1
    ]
    return bool(batches) and all(dim.dim_value == 1 for dim in batches)


def _is_mask(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor is Cast(Unsqueeze(frame numbers < lengths)), all of it true."""
    cast = graph.producer(tensor)
    if cast is None or cast.op_type != "Cast" or integer(cast, "to", 0) != 1:
        return False
    less = _beneath(graph, cast.input[0], "Unsqueeze")
    if less is None or less.op_type != "Less":
        return False
    numbers = _beneath(graph, less.input[0], "Unsqueeze")
    if numbers is None or numbers.op_type != "Range":
        return False
    begin, step = graph.scalar(numbers.input[0]), graph.scalar(numbers.input[2])
    if (begin, step) != (0, 1):
        return False
    longest = graph.producer(numbers.input[1])
    lengths = _origin(graph, less.input[1])
    return longest is not None and longest.op_type == "ReduceMax" and longest.input[0] == lengths


def _origin(graph: Graph, tensor: str) -> str:
    """Return the tensor that one Unsqueeze, if any, made this one of."""
    node = graph.producer(tensor)
    return node.input[0] if node is not None and node.op_type == "Unsqueeze" else tensor


def _beneath(graph: Graph, tensor: str, wrapper: str) -> onnx.NodeProto | None:
    """Return the node below any number of wrappers."""
    node = graph.producer(tensor)
    while node is not None and node.op_type == wrapper:
        node = graph.producer(node.input[0])
    return node
