"""Masks of ones: a voice speaks one utterance at a time, so nothing of it is padding."""

from onnx import TensorProto

from tts_compress.onnx.graph import Graph, attribute


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
        kept: str | None = None
        if node.op_type == "Mul":
            pairs = (node.input, node.input[::-1])
            kept = next((factor for factor, other in pairs if _is_mask(graph, other)), None)
        elif node.op_type == "Where" and _is_never(graph, node.input[0]):
            kept = node.input[2] if _is_product(graph, node.input[2]) else None
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


def _is_product(graph: Graph, tensor: str) -> bool:
    """Return True if a tensor is a product of frames with frames: as square as the mask."""
    node = graph.producer(tensor)
    while node is not None and node.op_type == "Add":
        node = graph.producer(node.input[0])
    return node is not None and node.op_type == "MatMul"


def _is_never(graph: Graph, condition: str) -> bool:
    """Return True if a condition is Equal(mask · mask, 0), which holds nowhere."""
    parts = graph.match(condition, ("Equal", ("Mul", "left", "right"), "zero"))
    if parts is None or graph.scalar(parts["zero"]) != 0:
        return False
    return all(_is_mask(graph, _origin(graph, parts[side])) for side in ("left", "right"))


def _is_mask(graph: Graph, tensor: str) -> bool:
    """Return True if a tensor is Cast(Unsqueeze(frame numbers < lengths)), all of it true."""
    cast = graph.producer(tensor)
    if cast is None or cast.op_type != "Cast" or attribute(cast, "to", 0) != TensorProto.FLOAT:
        return False
    less = ("Less", ("Range", "begin", "limit", "step"), "lengths")
    parts = graph.match(cast.input[0], less, ("Unsqueeze",))
    if parts is None or [graph.scalar(parts[name]) for name in ("begin", "step")] != [0, 1]:
        return False
    lengths = _origin(graph, parts["lengths"])
    longest = graph.match(parts["limit"], ("ReduceMax", "lengths"))
    if longest is not None:
        return longest["lengths"] == lengths
    # The number of ids, against the length that was passed along with them.
    counted = graph.match(parts["limit"], ("Shape", "ids"), ("Gather",))
    return counted is not None and lengths in graph.inputs


def _origin(graph: Graph, tensor: str) -> str:
    """Return the input of the Unsqueeze that makes a tensor, or the tensor itself."""
    return (graph.match(tensor, ("Unsqueeze", "origin")) or {"origin": tensor})["origin"]
