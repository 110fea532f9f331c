"""Half-precision arithmetic, except where it is unsafe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import tensors_read
from tts_compress.onnx.modules import module_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.numerics.weights import Float32
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.onnx.quantize.graph_editor import GraphEditor

__all__ = ["check_half", "halve"]

_SAFE = frozenset(
    {
        *("Conv", "ConvTranspose", "MatMul"),
        *("Add", "Mul", "Neg", "Sub"),
        *("Erf", "LeakyRelu", "Relu", "Sigmoid", "Tanh"),
        *("Concat", "Expand", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
"""What keeps its meaning in half precision. Left out: sums over time and their squares (cumulative
sums of durations, layer norm's variance), exponentials and softmax, comparisons and rounding,
division, ranges, and random numbers, whose half-precision form onnxruntime's CPU refuses."""


def halve(editor: GraphEditor, decisions: Sequence[Decision], types: dict[str, int]) -> None:
    """Run the modules with half-precision decisions in float16, with casts at their borders.

    Args:
        editor: The graph.
        decisions: What was decided; modules with `activations = "float16"` are converted, with
            the safe operators between their weights.
        types: Element type of every tensor.

    Raises:
        QuantizationError: A weight does not fit into float16.
    """
    modules = {d.module for d in decisions if d.activations == "float16"}
    if not modules:
        return
    components = {module.split(".")[0] for module in modules}
    kept = {d.module for d in decisions if d.activations != "float16"}
    region = [
        node
        for node in editor.nodes
        if node.op_type in _SAFE
        and (module := module_of(node, editor.weights.keys())) not in kept
        and module.split(".")[0] in components
        and _is_float(node, types)
    ]
    produced = {name for node in region for name in node.output}
    for node in region:
        for position, name in enumerate(node.input):
            if name in produced or not name or types.get(name) != TensorProto.FLOAT:
                continue
            node.input[position] = _narrow(editor, name)
    _widen_border(editor, region, produced)


def _is_float(node: onnx.NodeProto, types: dict[str, int]) -> bool:
    return types.get(node.output[0]) == TensorProto.FLOAT


def _narrow(editor: GraphEditor, name: str) -> str:
    """Return a tensor in float16: another constant, or a cast."""
    half = f"{name}.float16"
    if name in editor.weights:
        values = editor.array(name)
        check_half(name, values)
        return editor.add_weight(half, values.astype(np.float16))
    if not any(half in node.output for node in editor.nodes):
        editor.add_node("Cast", [name], half, to=TensorProto.FLOAT16)
    return half


def _widen_border(editor: GraphEditor, region: list[onnx.NodeProto], produced: set[str]) -> None:
    """Give FP32 to everybody outside who reads a tensor of the region."""
    inside = {node.output[0] for node in region}
    read_outside = {
        name
        for node in editor.nodes
        if node.output[0] not in inside
        for name in tensors_read(node)
        if name in produced
    } | {name for name in produced if editor.is_output(name)}
    for node in region:
        for position, name in enumerate(node.output):
            if name not in read_outside:
                continue
            half = f"{name}.float16"
            editor.redirect(name, half, lambda reader: reader.output[0] in inside)
            node.output[position] = half
            inside.add(half)
            editor.add_node("Cast", [half], name, to=TensorProto.FLOAT)


def check_half(name: str, values: Float32) -> None:
    """Refuse a weight that half precision would turn into infinities.

    Raises:
        QuantizationError: A value is beyond float16.
    """
    largest = float(np.finfo(np.float16).max)
    if values.size and np.abs(values).max() > largest:
        raise QuantizationError(
            f"weight '{name}' has values beyond float16 (±{largest:.0f}); "
            "exclude its module in the recipe"
        )
