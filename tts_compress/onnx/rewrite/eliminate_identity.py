"""Elimination of operations that change nothing: adding zeros, multiplying by ones, masking.

They are found where two tensors are known to have one shape. Exported voices have dynamic lengths,
and the standard shape inference forgets them at the first convolution; here it is enough to know
from the graph's structure which tensors (B, C, T) share a time axis. Masks are of ones where one
utterance is spoken at a time, so that nothing of it is padding.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import read_convolution
from tts_compress.onnx.nodes import attribute, copy_attributes, sort_nodes
from tts_compress.onnx.rewrite.normalization import Shape, known_shapes

_UNARY = frozenset(
    {"Cast", "ConstantOfShape", "Erf", "Exp", "Identity", "LeakyRelu"}
    | {"Neg", "Relu", "Sigmoid", "Sqrt", "Tanh"}
)
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})
_VALID = ("Less", ("Range", "begin", "limit", "step"), "lengths")
"""The frames of each utterance that are none of its padding."""


def eliminate_identity(graph: Graph) -> int:
    """Drop additions of zeros and multiplications by ones that are made at run time.

    An exported WaveNet adds a zero speaker embedding to every layer, and a mean-only flow scales
    by exp(-0). Required: the filled tensor's shape is known to be that of the other operand, so
    that nothing is broadcast.

    Returns:
        How many operations were dropped.
    """
    extents, dropped = _extents(graph), 0
    for node in graph.nodes:
        neutral = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}.get(node.op_type)
        kept = None if neutral is None else _other_operand(graph, extents, node, neutral)
        dropped += graph.bypass(node, kept)
    return dropped


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


@dataclass(frozen=True, slots=True)
class Extent:
    """The shape of a tensor (B, C, T) as far as it is known."""

    channels: int | None
    time: str
    """Name of a tensor with the same B and T."""


def _extents(graph: Graph) -> dict[str, Extent]:
    """Return the extents of the tensors that operators make."""
    extents: dict[str, Extent] = {}

    def extent(tensor: str) -> Extent:
        return extents.get(tensor, Extent(None, tensor))

    for node in sort_nodes(graph.nodes):
        data = [extent(t) for t in node.input if t and graph.constant(t) is None]
        if node.op_type == "ConstantOfShape":
            shape = graph.producer(node.input[0])
            data = [extent(shape.input[0])] if shape is not None and _is_whole(shape) else []
        for tensor in node.output:
            follows = _extent(graph, node, tensor, data) if data else None
            extents[tensor] = follows or Extent(None, tensor)
    return extents


def _extent(graph: Graph, node: onnx.NodeProto, tensor: str, data: list[Extent]) -> Extent | None:
    """Return the extent of a tensor, if it follows from those of its node's inputs."""
    first, channels = data[0], None
    if node.op_type in _BINARY:
        scalars = [graph.scalar(t) for t in node.input if graph.constant(t) is not None]
        if len(data) == 1:
            return None if scalars[0] is None else first
        channels = first.channels if data[1] == first else None
    elif node.op_type == "Conv":
        convolution = read_convolution(graph, node)
        if convolution is not None and convolution.keeps_length:
            channels = len(convolution.weight)
    elif node.op_type == "Slice":
        bounds = channel_bounds(graph, node, first.channels)
        channels = None if bounds is None else bounds[1] - bounds[0]
    elif node.op_type == "Split" and attribute(node, "axis", 0) == 1 and len(node.input) > 1:
        sizes = graph.constant(node.input[1])
        channels = None if sizes is None else int(sizes[list(node.output).index(tensor)])
    elif node.op_type in _UNARY:
        channels = first.channels
    # Without channels it may be another axis that changed.
    return None if channels is None else Extent(channels, first.time)


def _is_whole(shape: onnx.NodeProto) -> bool:
    """Return True if a node is a Shape with every dimension."""
    attributes = copy_attributes(shape)
    return shape.op_type == "Shape" and not attributes.get("start") and "end" not in attributes


def _other_operand(
    graph: Graph, extents: Mapping[str, Extent], node: onnx.NodeProto, neutral: float
) -> str | None:
    """Return the operand that equals the result, if the other one is neutral."""
    left, right = (str(tensor) for tensor in node.input)
    pairs = [(left, right)] if node.op_type in {"Sub", "Div"} else [(left, right), (right, left)]
    for kept, filled in pairs:
        if _fill_value(graph, filled) == neutral and extents.get(kept) == extents[filled]:
            return kept
    return None


def _fill_value(graph: Graph, tensor: str) -> float | None:
    """Return the one value a tensor made by ConstantOfShape is filled with."""
    node = graph.producer(tensor)
    if node is None:
        return None
    if node.op_type == "ConstantOfShape":
        value = copy_attributes(node).get("value")
        return 0.0 if value is None else float(numpy_helper.to_array(value).reshape(-1)[0])
    inner = _fill_value(graph, node.input[0]) if node.op_type in {"Neg", "Exp"} else None
    if inner is None:
        return None
    return -inner if node.op_type == "Neg" else math.exp(inner)


def single_utterance(graph: Graph) -> int:
    """Fix the batch axis of inputs and outputs to one utterance; return how many were open.

    Programs that speak with voices never pass more; and one utterance has no padding, so its
    length is the number of its ids. The axis is the first, and is called `batch_size`, or as that
    of the lengths which frame numbers are compared with.
    """
    names = {"batch_size", _utterances(graph)} - {""}
    values = (*graph.model.graph.input, *graph.model.graph.output)
    firsts = [dims[0] for value in values if (dims := value.type.tensor_type.shape.dim)]
    batches = [dim for dim in firsts if dim.dim_param in names]
    for dim in batches:
        dim.dim_value = 1
    return len(batches)


def _utterances(graph: Graph) -> str:
    """Return the name of the axis of lengths that frame numbers are compared with; empty if none.

    Required: whatever has several axes begins with it, and something has a length of its own: else
    it may be the axis of symbols, which have lengths, too.
    """
    compared = (graph.match(node.output[0], _VALID, ("Unsqueeze",)) for node in graph.nodes)
    lengths = {_origin(graph, parts["lengths"]) for parts in compared if parts is not None}
    shapes = {name: v.type.tensor_type.shape.dim for name, v in graph.inputs.items()}
    names = {shapes[name][0].dim_param for name in lengths & shapes.keys() if shapes[name]}
    others = [[*dims] for dims in shapes.values() if len(dims) > 1]
    is_open = any(not dim.dim_value for _, *rest in others for dim in rest)
    firsts = {dims[0].dim_param for dims in others if dims[0].dim_value != 1}
    return names.pop() if len(names) == 1 and firsts == names and is_open else ""


def drop_masks(graph: Graph) -> int:
    """Drop multiplications by, and selections on, masks of ones; return how many were dropped.

    A frame is valid while its number is below the utterance's length, and there are as many frames
    as the longest utterance has. With one utterance that is all of them. Required, therefore: every
    graph input that has a batch axis has it fixed to 1 (see `single_utterance`), and what is masked
    is as long as the mask.
    """
    if not is_single(graph):
        return 0
    shapes, dropped = known_shapes(graph), 0
    for node in graph.nodes:
        kept: str | None = None
        if node.op_type == "Mul":
            pairs = (node.input, node.input[::-1])
            masked = (x for x, mask in pairs if _is_mask(graph, mask) and _fills(shapes, x, mask))
            kept = next((x for x in masked if graph.constant(x) is None), None)
        elif node.op_type == "Where" and _is_never(graph, node.input[0]):
            kept = node.input[2] if _is_product(graph, node.input[2]) else None
        dropped += graph.bypass(node, kept)
    return dropped


def _fills(shapes: Mapping[str, Shape], tensor: str, mask: str) -> bool:
    """Return False if a tensor is known to be repeated along an axis of a mask but the first."""
    sizes, along = shapes.get(tensor), shapes.get(mask, (None, None))
    if sizes is None:
        return True
    pairs = zip(sizes[::-1], along[:0:-1], strict=False)
    return len(sizes) >= len(along) and all(size != 1 or frames == 1 for size, frames in pairs)


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
    if cast is None or cast.op_type != "Cast":
        return False
    source = graph.producer(cast.input[0])
    if source is not None and source.op_type == "Cast":  # a graph in 16 bits narrows its masks
        return _is_mask(graph, cast.input[0])
    parts = graph.match(cast.input[0], _VALID, ("Unsqueeze",))
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
