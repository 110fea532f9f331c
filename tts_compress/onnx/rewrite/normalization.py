"""Normalizations in fewer passes, and the transposes that this puts around them.

Adaptive instance normalization (Huang and Belongie, "Arbitrary Style Transfer in Real-time with
Adaptive Instance Normalization", 2017), as StyleTTS 2 and Kokoro have it, multiplies each channel
by a factor of the style and adds an offset. `InstanceNormalization` does that in the same pass.

Layer normalization is exported in nine operators, each a pass over the tensor; onnxruntime fuses
those along the last axis only, and VITS normalizes channels, which stand before time.
"""

from collections.abc import Mapping

import numpy as np
import onnx

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.nodes import attribute, copy_attributes

Shape = tuple[int | None, ...]


def fold_affine(graph: Graph) -> int:
    """Fold γ · x + β into the normalizations that make x; return how many were folded.

    Required: one text at a time; γ and β known to hold one number per channel, constant or made at
    run time; a normalization that nothing else reads. β may be missing.
    """
    shapes = known_shapes(graph)
    return sum(
        _fold(graph, shapes, node)
        for node in list(graph.nodes)
        if node.op_type == "InstanceNormalization"
    )


def _fold(graph: Graph, shapes: Mapping[str, Shape], node: onnx.NodeProto) -> bool:
    source, scale, shift = node.input
    constants = [graph.constant(tensor) for tensor in (scale, shift)]
    channels = None if any(value is None for value in constants) else len(graph.value(scale))
    product = graph.only_reader(node.output[0])
    factor = _operand(shapes, product, "Mul", node.output[0], channels)
    if product is None or factor is None:
        return False
    last = graph.only_reader(product.output[0])
    offset = _operand(shapes, last, "Add", product.output[0], channels)
    if last is None or offset is None:
        last, offset = product, None
    if last.output[0] in graph.outputs:
        return False
    flat = graph.share_constant("tts_compress.flat", np.array([-1], np.int64))
    rows = graph.make("Reshape", [factor, flat], f"{factor}.channels")
    if (graph.value(scale) == 1).all():
        scale = rows
    else:
        scale = graph.make("Mul", [scale, rows], f"{node.output[0]}.scale")
    if graph.value(shift).any():
        shift = graph.make("Mul", [shift, rows], f"{node.output[0]}.shift")
        if offset is not None:
            more = graph.make("Reshape", [offset, flat], f"{offset}.channels")
            shift = graph.make("Add", [shift, more], f"{node.output[0]}.offset")
    elif offset is not None:
        shift = graph.make("Reshape", [offset, flat], f"{offset}.channels")
    for replaced in {id(n): n for n in (node, product, last)}.values():
        graph.remove(replaced)
    inputs, attributes = [source, scale, shift], copy_attributes(node)
    graph.add("InstanceNormalization", inputs, [last.output[0]], node.name, **attributes)
    return True


def _operand(
    shapes: Mapping[str, Shape],
    node: onnx.NodeProto | None,
    operator: str,
    tensor: str,
    channels: int | None,
) -> str | None:
    """Return the other operand of a sum or product, if it is one number per channel."""
    if node is None or node.op_type != operator or channels is None:
        return None
    others = [name for name in node.input if name != tensor]
    shape = shapes.get(others[0], ()) if len(others) == 1 else ()
    # A batch of unknown size is one text.
    fits = shape[-2:] == (channels, 1) and shape[:-2] in {(), (1,), (None,)}
    return others[0] if fits else None


def known_shapes(graph: Graph) -> dict[str, Shape]:
    """Return the known shapes of tensors; None stands for an unknown size."""
    model = graph.model.graph
    shapes: dict[str, Shape] = {name: tuple(t.dims) for name, t in graph.initializers.items()}
    for value in (*model.value_info, *model.input):
        if value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(
                size.dim_value if size.HasField("dim_value") else None for size in sizes
            )
    return shapes


_OLDEST, _NEEDED = 13, 17
"""Operator sets: LayerNormalization came with 17, and nothing in a voice changed since 13."""

ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Erf", "Relu", "Tanh", "Sigmoid"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
_TURN = (0, 2, 1)

_SPREAD = ("Sqrt", ("Add", "variance", "epsilon"))
_NORMALIZATION = ("Add", "shift", ("Mul", "scale", ("Div", "centred", _SPREAD)))
"""γ · (x - mean) / √(variance + ε) + β."""


def fuse_normalization(graph: Graph) -> int:
    """Fuse normalizations of channels, with time last; return how many there were.

    They are put between two transposes, which `cancel_transposes` removes where a neighbour works
    on channels last, too. Required: an operator set from 13 on, constant γ and β of all channels.
    """
    if graph.opset() < _OLDEST:
        return 0
    fused = sum(_fuse(graph, node) for node in list(graph.nodes) if node.op_type == "Add")
    if fused:
        graph.require_opset("", _NEEDED)
    return fused


def cancel_transposes(graph: Graph) -> int:
    """Remove transposes between (B, C, T) and (B, T, C) that undo each other; return how many.

    Elementwise operators whose inputs are all transposed work on the originals instead, and their
    result is transposed: so transposes move on until they meet their opposite, or stop.
    """
    cancelled = 0
    for node in list(graph.nodes):
        if _is_turn(node):
            cancelled += graph.bypass(node, _before(graph, node.input[0]))
        elif node.op_type in ELEMENTWISE and node.output[0] not in graph.outputs:
            _move(graph, node)
    return cancelled


def _fuse(graph: Graph, node: onnx.NodeProto) -> bool:
    """Replace the normalization whose last operator, the addition of β, a node is."""
    stem = node.output[0]
    parts = graph.match(stem, _NORMALIZATION)
    centred = graph.match(parts["centred"], ("Sub", "source", "mean")) if parts else None
    if parts is None or centred is None or stem in graph.outputs:
        return False
    epsilon, source = graph.scalar(parts["epsilon"]), centred["source"]
    scale, shift = (graph.by_channel(parts[name]) for name in ("scale", "shift"))
    if epsilon is None or scale is None or shift is None or len(scale) != len(shift):
        return False
    square, mean = _mean_of(graph, parts["variance"]), _mean_of(graph, centred["mean"])
    if mean != source or not _is_square(graph, square, parts["centred"]):
        return False
    graph.remove(node)
    last = graph.make("Transpose", [source], f"{stem}.turned", perm=_TURN)
    inputs = [last, *graph.add_constants(stem, scale=scale, shift=shift)]
    normal = graph.make("LayerNormalization", inputs, f"{stem}.normal", axis=-1, epsilon=epsilon)
    graph.add("Transpose", [normal], [stem], perm=_TURN)
    return True


def _mean_of(graph: Graph, tensor: str) -> str | None:
    """Return the tensor whose mean over channels this is, if it keeps their axis, else None."""
    node = graph.producer(tensor)
    if node is None or node.op_type != "ReduceMean" or attribute(node, "keepdims", 1) != 1:
        return None
    axes = graph.constant(node.input[1]) if len(node.input) > 1 else attribute(node, "axes", ())
    return None if axes is None or list(axes) != [1] else str(node.input[0])


def _is_square(graph: Graph, tensor: str | None, root: str) -> bool:
    if tensor is None:
        return False
    power = graph.match(tensor, ("Pow", "root", "exponent"))
    if power is not None:
        return power["root"] == root and graph.scalar(power["exponent"]) == 2
    return graph.match(tensor, ("Mul", "root", "root")) == {"root": root}


def _move(graph: Graph, node: onnx.NodeProto) -> None:
    """Apply an elementwise operator before the transposes of its inputs."""
    before = [t if _is_number(graph, t) else _before(graph, t) for t in node.input]
    inputs = [tensor for tensor in before if tensor is not None]
    is_constant = all(graph.constant(tensor) is not None for tensor in node.input)
    if len(inputs) < len(before) or is_constant:
        return
    output = node.output[0]
    graph.remove(node)
    attributes = copy_attributes(node) | {"domain": node.domain}
    turned = graph.make(node.op_type, inputs, f"{output}.turned", node.name, **attributes)
    graph.add("Transpose", [turned], [output], f"{turned}/Transpose", perm=_TURN)


def _is_number(graph: Graph, tensor: str) -> bool:
    """Return True for a constant of one element that adds no axis to (B, C, T)."""
    value = graph.constant(tensor)
    return value is not None and value.size == 1 and value.ndim <= len(_TURN)


def _before(graph: Graph, tensor: str) -> str | None:
    """Return the tensor that this one is the transpose of, if it is one."""
    node = graph.producer(tensor)
    return str(node.input[0]) if node is not None and _is_turn(node) else None


def _is_turn(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and attribute(node, "perm", (2, 1, 0)) == _TURN
