"""INT8 arithmetic with calibrated activation ranges, in the portable QDQ form.

Every operator to be run in integers stands between `DequantizeLinear` and `QuantizeLinear`; a
runtime that knows the pattern fuses it, another one computes the same rounding in FP32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tts_compress.errors import QuantizationError
from tts_compress.numerics.affine import Affine
from tts_compress.numerics.weights import round_bias
from tts_compress.onnx.quantize.weight_only import dequantized_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from tts_compress.numerics.histogram import Range
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.onnx.quantize.graph_editor import GraphEditor

__all__ = ["observed_tensors", "quantize_statically"]


def observed_tensors(model: onnx.ModelProto, decisions: Sequence[Decision]) -> list[str]:
    """Return the activations whose ranges static quantization needs, in graph order."""
    chosen = _static(decisions)
    weights = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, None] = {}
    for node in model.graph.node:
        if node.output and node.output[0] in chosen:
            inputs = _activation_inputs(node, chosen[node.output[0]])
            found |= dict.fromkeys(name for name in inputs if name not in weights)
            found[node.output[0]] = None
    return list(found)


def quantize_statically(
    editor: GraphEditor,
    decisions: Sequence[Decision],
    ranges: Mapping[str, Range],
) -> None:
    """Put quantize-dequantize pairs around the operators that static decisions name.

    Raises:
        QuantizationError: Calibration saw no range for a tensor.
    """
    chosen = _static(decisions)
    nodes = [node for node in editor.nodes if node.output and node.output[0] in chosen]
    for node in nodes:
        decision = chosen[node.output[0]]
        for name in _activation_inputs(node, decision):
            if name not in editor.weights and name not in chosen:
                rounded = _rounded(editor, name, ranges)
                _replace_input(node, name, rounded)
        if decision.weight is not None:
            _convert_weight(editor, node, decision, ranges)
    for node in nodes:
        _round_output(editor, node, ranges)


def _static(decisions: Sequence[Decision]) -> dict[str, Decision]:
    return {d.output: d for d in decisions if d.activations == "static"}


def _activation_inputs(node: onnx.NodeProto, decision: Decision) -> list[str]:
    """Return what flows in: everything for an element-wise operator, else the first input."""
    return list(node.input) if decision.weight is None else [node.input[0]]


def _replace_input(node: onnx.NodeProto, old: str, new: str) -> None:
    for position, name in enumerate(node.input):
        if name == old:
            node.input[position] = new


def _convert_weight(
    editor: GraphEditor,
    node: onnx.NodeProto,
    decision: Decision,
    ranges: Mapping[str, Range],
) -> None:
    """Store weight and bias as integers; the bias in the scale of the accumulated products."""
    source = node.input[0].removesuffix(".rounded")
    node.input[1] = dequantized_weight(editor, decision, multiplied=True)
    if len(node.input) < 3 or not node.input[2]:
        return
    scale = np.float32(_code(ranges, source).scale)
    scales = scale * editor.array(f"{decision.weight}.scale")
    bias = editor.array(node.input[2])
    integers = round_bias(bias, scales.astype(np.float64))
    name = f"{node.output[0]}.rounded_bias"
    stored = [
        editor.add_weight(f"{name}.int32", integers),
        editor.add_weight(f"{name}.scale", scales.astype(np.float32)),
        editor.add_weight(f"{name}.zero", np.zeros(len(integers), np.int32)),
    ]
    node.input[2] = editor.add_node("DequantizeLinear", stored, name, axis=0)


def _rounded(editor: GraphEditor, tensor: str, ranges: Mapping[str, Range]) -> str:
    """Return a tensor's quantized-and-dequantized copy, made once."""
    rounded = f"{tensor}.rounded"
    if not any(rounded in node.output for node in editor.nodes):
        _add_pair(editor, tensor, _code(ranges, tensor))
    return rounded


def _round_output(
    editor: GraphEditor,
    node: onnx.NodeProto,
    ranges: Mapping[str, Range],
) -> None:
    """Let every reader of an output see it rounded, as an integer kernel returns it."""
    output = node.output[0]
    if editor.is_output(output):
        return  # the caller gets FP32
    pair = _add_pair(editor, output, _code(ranges, output))
    editor.redirect(output, f"{output}.rounded", lambda reader: reader.output[0] not in pair)


def _add_pair(editor: GraphEditor, name: str, code: Affine) -> tuple[str, str]:
    constants = [
        editor.add_weight(f"{name}.activation_scale", np.array(code.scale, np.float32)),
        editor.add_weight(f"{name}.activation_zero", np.array(code.zero, np.uint8)),
    ]
    stored = editor.add_node("QuantizeLinear", [name, *constants], f"{name}.quantized")
    return stored, editor.add_node("DequantizeLinear", [stored, *constants], f"{name}.rounded")


def _code(ranges: Mapping[str, Range], tensor: str) -> Affine:
    if tensor not in ranges:
        raise QuantizationError(f"calibration saw no values of '{tensor}'")
    return Affine.spanning(*ranges[tensor])
