"""Masks of ones: a voice speaks one utterance at a time, so nothing of it is padding."""

import onnx

from tts_compress.onnx.graph import Graph, integer


def single_utterance(graph: Graph) -> int:
    """Fix the batch axis of every input and output to one utterance; return how many were open.

    Programs that speak with Piper voices never pass more; and one utterance has no padding, so
    its length is the number of its ids.
    """
    fixed = 0
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_param == "batch_size":
            dims[0].dim_value = 1
            fixed += 1
    return fixed


def drop_masks(graph: Graph) -> int:
    """Drop multiplications by, and selections on, masks of ones; return how many were dropped.

    A frame is valid while its number is below the utterance's length, and there are as many frames
    as the longest utterance has. With one utterance that is all of them. Required, therefore: every
    graph input that has a batch axis has it fixed to 1 (see `single_utterance`).
    """
    if not is_single(graph):
        return 0
    dropped = 0
    for node in graph.nodes:
        kept = None
        if node.op_type == "Mul":
            kept = _unmasked(graph, node)
        elif node.op_type == "Where" and _is_never(graph, node.input[0]):
            kept = _scores(graph, node.input[2])
        if kept is not None and node.output[0] not in graph.outputs:
            graph.remove(node)
            graph.redirect(node.output[0], kept)
            dropped += 1
    return dropped


def is_single(graph: Graph) -> bool:
    """Return True if every graph input that has a batch axis has it fixed to one utterance."""
    batches = [
        value.type.tensor_type.shape.dim[0]
        for value in graph.model.graph.input
        if len(value.type.tensor_type.shape.dim) > 1
    ]
    return bool(batches) and all(dim.dim_value == 1 for dim in batches)


def _unmasked(graph: Graph, product: onnx.NodeProto) -> str | None:
    """Return the factor of a product whose other factor is a mask."""
    left, right = (str(tensor) for tensor in product.input)
    if _is_mask(graph, right):
        return left
    return right if _is_mask(graph, left) else None


def _scores(graph: Graph, tensor: str) -> str | None:
    """Return a tensor if it is a product of frames with frames: as square as the mask."""
    node = graph.producer(tensor)
    while node is not None and node.op_type == "Add":
        node = graph.producer(node.input[0])
    return tensor if node is not None and node.op_type == "MatMul" else None


def _is_never(graph: Graph, condition: str) -> bool:
    """Return True if a condition is Equal(mask · mask, 0), which holds nowhere."""
    equal = graph.producer(condition)
    if equal is None or equal.op_type != "Equal" or graph.scalar(equal.input[1]) != 0:
        return False
    product = graph.producer(equal.input[0])
    if product is None or product.op_type != "Mul":
        return False
    return all(_is_mask(graph, _origin(graph, side)) for side in product.input)


def _is_mask(graph: Graph, tensor: str) -> bool:
    """Return True if a tensor is Cast(Unsqueeze(frame numbers < lengths)), all of it true."""
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
    lengths = _origin(graph, less.input[1])
    longest = graph.producer(numbers.input[1])
    if longest is not None and longest.op_type == "ReduceMax":
        return str(longest.input[0]) == lengths
    # The number of ids, against the length that was passed along with them.
    shape = _beneath(graph, numbers.input[1], "Gather")
    return shape is not None and shape.op_type == "Shape" and lengths in graph.inputs


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
