"""Layer normalization as the one operator that it is.

Exported in nine, each a pass over the tensor; onnxruntime fuses those along the last axis only,
and VITS normalizes channels, which stand before time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.onnx.graph import integer, integers

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Array, Graph

__all__ = ["fuse_normalization"]

_OLDEST, _NEEDED = 13, 17
"""Operator sets: LayerNormalization came with 17, and nothing in a voice changed since 13."""

_TURNED = [0, 2, 1]


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

    The result is turned there and back again: `cancel_transposes` takes the turns out where a
    neighbour works on channels last, too. Wanted: an operator set from 13 on, constant γ and β of
    all channels.
    """
    if graph.opset() < _OLDEST:
        return 0
    found = [n for n in (_match(graph, node) for node in list(graph.nodes)) if n is not None]
    for each in found:
        _emit(graph, each)
    if found:
        graph.require_opset("", _NEEDED)
    return len(found)


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


def _emit(graph: Graph, found: Normalization) -> None:
    stem = found.output
    old = graph.producer(stem)
    assert old is not None
    graph.remove(old)
    last = graph.add("Transpose", [found.source], [graph.fresh(f"{stem}.turned")], perm=_TURNED)
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
    graph.add("Transpose", [normal], [stem], perm=_TURNED)


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
    """Return what a tensor is the mean of, over channels, where it keeps their axis."""
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
