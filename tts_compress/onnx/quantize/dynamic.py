"""INT8 arithmetic with activation ranges found at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.numerics.weights import round_weight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.onnx.quantize.graph_editor import GraphEditor

__all__ = ["quantize_dynamically"]


def quantize_dynamically(editor: GraphEditor, decisions: Iterable[Decision]) -> None:
    """Replace operators by their integer forms.

    onnxruntime's kernels want opposite weight types: `ConvInteger` is four times faster with
    unsigned weights, `MatMulInteger` two and a half times with signed ones. Products of two
    unsigned bytes are added in 32 bits everywhere, so only the signed ones are kept from overflow.
    """
    chosen = {d.output: d for d in decisions if d.activations == "dynamic"}
    for node in [node for node in editor.nodes if node.output and node.output[0] in chosen]:
        decision = chosen[node.output[0]]
        if decision.operator == "Conv":
            _convolution(editor, node, decision)
        else:
            _product(editor, node, decision)


def _convolution(editor: GraphEditor, node: onnx.NodeProto, decision: Decision) -> None:
    assert decision.weight is not None
    weight = editor.array(decision.weight)
    integers, scales = round_weight(weight, decision.axis, multiplied=False)
    # Unsigned with a zero point of 128: the same values, the faster kernel.
    stored = editor.add_weight(
        f"{decision.weight}.uint8", (integers.astype(np.int16) + 128).astype(np.uint8)
    )
    zero = editor.add_weight("tts_compress.uint8_middle", np.array(128, np.uint8))
    activation, scale, activation_zero = _rounded_input(editor, node.input[0])
    output = node.output[0]
    accumulated = editor.add_node(
        "ConvInteger",
        [activation, stored, activation_zero, zero],
        f"{output}.int32",
        **{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
    )
    per_channel = [1, -1] + [1] * (weight.ndim - 2)
    weight_scale = editor.add_weight(f"{decision.weight}.scale", scales.reshape(per_channel))
    bias = node.input[2] if len(node.input) > 2 else None
    if bias is not None:
        bias = editor.add_weight(f"{output}.channel_bias", editor.array(bias).reshape(per_channel))
    editor.remove(node)
    _scaled(editor, accumulated, [scale, weight_scale], bias, output)


def _product(editor: GraphEditor, node: onnx.NodeProto, decision: Decision) -> None:
    assert decision.weight is not None
    weight = editor.array(decision.weight)
    integers, scales = round_weight(weight, decision.axis, multiplied=True)
    stored = editor.add_weight(f"{decision.weight}.int8", integers)
    weight_scale = editor.add_weight(f"{decision.weight}.scale", scales)
    activation, scale, activation_zero = _rounded_input(editor, node.input[0])
    output = node.output[0]
    accumulated = editor.add_node(
        "MatMulInteger", [activation, stored, activation_zero], f"{output}.int32"
    )
    editor.remove(node)
    _scaled(editor, accumulated, [scale, weight_scale], None, output)


def _rounded_input(editor: GraphEditor, tensor: str) -> tuple[str, str, str]:
    """Return an activation as uint8 with its scale and zero point; shared by all its readers."""
    names = (f"{tensor}.uint8", f"{tensor}.uint8_scale", f"{tensor}.uint8_zero")
    if not any(names[0] in node.output for node in editor.nodes):
        node = onnx.helper.make_node("DynamicQuantizeLinear", [tensor], names, names[0])
        editor.nodes.append(node)
    return names


def _scaled(
    editor: GraphEditor, accumulated: str, scales: list[str], bias: str | None, output: str
) -> None:
    """Turn 32-bit sums back into the FP32 tensor that readers expect."""
    wide = editor.add_node("Cast", [accumulated], f"{output}.float", to=TensorProto.FLOAT)
    scale = editor.add_node("Mul", scales, f"{output}.scale")
    if bias is None:
        editor.add_node("Mul", [wide, scale], output)
    else:
        product = editor.add_node("Mul", [wide, scale], f"{output}.scaled")
        editor.add_node("Add", [product, bias], output)
