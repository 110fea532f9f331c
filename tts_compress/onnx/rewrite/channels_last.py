"""Work on channels last: layer normalization as one operator, transposes that cancel.

Layer normalization is exported in nine operators, each a pass over the tensor; onnxruntime fuses
those along the last axis only, and VITS normalizes channels, which stand before time.
"""

from dataclasses import dataclass

import onnx

from tts_compress.onnx.graph import Array, Graph, copy_attributes, integer, integers

_OLDEST, _NEEDED = 13, 17
"""Operator sets: LayerNormalization came with 17, and nothing in a voice changed since 13."""

_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Erf", "Relu", "Tanh", "Sigmoid"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
_TURN = (0, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """γ · (x - mean) / √(variance + ε) + β over the channels of (B, C, T)."""

    source: str
    output: str
    epsilon: float
    scale: Array
    """γ, (C,)."""

    shift: Array
    """β, (C,)."""


def fuse_normalization(graph: Graph) -> int:
    """Fuse normalizations of channels, with time last; return how many there were.

    They are put between two transposes, which `cancel_transposes` removes where a neighbour works
    on channels last, too. Required: an operator set from 13 on, constant γ and β of all channels.
    """
    if graph.opset() < _OLDEST:
        return 0
    found = [n for n in (_match(graph, node) for node in list(graph.nodes)) if n is not None]
    for each in found:
        _emit_normalization(graph, each)
    if found:
        graph.require_opset("", _NEEDED)
    return len(found)


def cancel_transposes(graph: Graph) -> int:
    """Remove transposes between (B, C, T) and (B, T, C) that undo each other; return how many.

    Elementwise operators whose inputs are all transposed work on the originals instead, and their
    result is transposed: so transposes move on until they meet their opposite, or stop.
    """
    cancelled = 0
    for node in list(graph.nodes):
        if _is_turn(node):
            before = _before(graph, node.input[0])
            if before is not None and node.output[0] not in graph.outputs:
                graph.remove(node)
                graph.redirect(node.output[0], before)
                cancelled += 1
        elif node.op_type in _ELEMENTWISE and node.output[0] not in graph.outputs:
            _move(graph, node)
    return cancelled


def _match(graph: Graph, shifted: onnx.NodeProto) -> Normalization | None:
    """Return the normalization whose last operator, the addition of β, a node is."""
    if shifted.op_type != "Add" or shifted.output[0] in graph.outputs:
        return None
    scaled, shift = _with_channels(graph, shifted)
    scaled_node = _made_by(graph, scaled, "Mul")
    if scaled_node is None or shift is None:
        return None
    quotient, scale = _with_channels(graph, scaled_node)
    divided = _made_by(graph, quotient, "Div")
    root = None if divided is None else _made_by(graph, divided.input[1], "Sqrt")
    spread = None if root is None else _made_by(graph, root.input[0], "Add")
    if divided is None or spread is None or scale is None or len(scale) != len(shift):
        return None
    epsilon = graph.scalar(spread.input[1])
    centred = _made_by(graph, divided.input[0], "Sub")
    if epsilon is None or centred is None or not _is_mean(graph, *centred.input):
        return None
    variance = _mean_of(graph, spread.input[0])
    if variance is None or not _is_square(graph, variance, divided.input[0]):
        return None
    return Normalization(
        source=centred.input[0],
        output=shifted.output[0],
        epsilon=epsilon,
        scale=scale,
        shift=shift,
    )


def _emit_normalization(graph: Graph, found: Normalization) -> None:
    stem = found.output
    old = graph.producer(stem)
    assert old is not None
    graph.remove(old)
    last = graph.add("Transpose", [found.source], [graph.fresh(f"{stem}.turned")], perm=list(_TURN))
    values = [
        graph.add_constant(f"{stem}.{name}", value)
        for name, value in (("scale", found.scale), ("shift", found.shift))
    ]
    normal = graph.add(
        "LayerNormalization",
        [last, *values],
        [graph.fresh(f"{stem}.normal")],
        axis=-1,
        epsilon=found.epsilon,
    )
    graph.add("Transpose", [normal], [stem], perm=list(_TURN))


def _with_channels(graph: Graph, node: onnx.NodeProto) -> tuple[str, Array | None]:
    """Return the operand of a product or sum, and the constant (1, C, 1) beside it, as (C,)."""
    for operand, fixed in (tuple(node.input), tuple(node.input)[::-1]):
        value = graph.constant(fixed)
        if value is not None and value.ndim == 3 and value.shape[::2] == (1, 1):
            return operand, value.reshape(-1)
    return node.input[0], None


def _made_by(graph: Graph, tensor: str, operator: str) -> onnx.NodeProto | None:
    node = graph.producer(tensor)
    return node if node is not None and node.op_type == operator else None


def _is_mean(graph: Graph, tensor: str, mean: str) -> bool:
    return _mean_of(graph, mean) == tensor


def _mean_of(graph: Graph, tensor: str) -> str | None:
    """Return the tensor of which this is the mean over channels, if it keeps their axis."""
    node = _made_by(graph, tensor, "ReduceMean")
    if node is None or integer(node, "keepdims", 1) != 1:
        return None
    axes = graph.constant(node.input[1]) if len(node.input) > 1 else integers(node, "axes")
    return None if axes is None or list(axes) != [1] else str(node.input[0])


def _is_square(graph: Graph, tensor: str, root: str) -> bool:
    node = graph.producer(tensor)
    if node is None or node.input[0] != root:
        return False
    if node.op_type == "Pow":
        return graph.scalar(node.input[1]) == 2
    return node.op_type == "Mul" and node.input[1] == root


def _move(graph: Graph, node: onnx.NodeProto) -> None:
    """Apply an elementwise operator before the transposes of its inputs."""
    inputs = []
    for tensor in node.input:
        value = graph.constant(tensor)
        before = tensor if value is not None and value.size == 1 else _before(graph, tensor)
        if before is None:
            return
        inputs.append(before)
    if all(graph.constant(tensor) is not None for tensor in node.input):
        return
    output = node.output[0]
    graph.remove(node)
    made = graph.fresh(f"{output}.turned")
    attributes = copy_attributes(node) | {"domain": node.domain}
    graph.add(node.op_type, inputs, [made], node.name, **attributes)
    graph.add("Transpose", [made], [output], f"{made}/Transpose", perm=list(_TURN))


def _before(graph: Graph, tensor: str) -> str | None:
    """Return the tensor that this one is the transpose of, if it is one."""
    node = graph.producer(tensor)
    return str(node.input[0]) if node is not None and _is_turn(node) else None


def _is_turn(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and integers(node, "perm") == _TURN
