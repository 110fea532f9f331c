"""Weights stored small, arithmetic in FP32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from tts_compress.numerics.weights import round_weight
from tts_compress.onnx.quantize.float16 import check_half

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.onnx.quantize.graph_editor import GraphEditor

__all__ = ["dequantized_weight", "store_weights"]

_STORED = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def store_weights(editor: GraphEditor, decisions: Iterable[Decision]) -> None:
    """Store the weights of operators whose activations stay FP32 as their decisions say."""
    for decision in decisions:
        if decision.activations != "none" or decision.weights == "float32":
            continue
        assert decision.weight is not None
        if decision.weights == "int8":
            wide = dequantized_weight(editor, decision, multiplied=False)
        else:
            wide = _widened_weight(editor, decision)
        _use(editor, decision, wide)


def dequantized_weight(editor: GraphEditor, decision: Decision, *, multiplied: bool) -> str:
    """Store a weight as INT8 and return the tensor that holds it as FP32 at run time.

    Args:
        editor: Where to.
        decision: Names the weight.
        multiplied: Whether integer kernels multiply its codes, as `round_weight` wants to know.
    """
    weight = decision.weight
    assert weight is not None
    wide = f"{weight}.dequantized"
    if wide not in {node.output[0] for node in editor.nodes if node.output}:
        integers, scales = round_weight(editor.array(weight), decision.axis, multiplied=multiplied)
        stored = [
            editor.add_weight(f"{weight}.int8", integers),
            editor.add_weight(f"{weight}.scale", scales),
            editor.add_weight(f"{weight}.zero", np.zeros(len(scales), np.int8)),
        ]
        editor.add_node("DequantizeLinear", stored, wide, axis=decision.axis)
    return wide


def _widened_weight(editor: GraphEditor, decision: Decision) -> str:
    weight = decision.weight
    assert weight is not None
    wide = f"{weight}.widened"
    stored = f"{weight}.{decision.weights}"
    if stored not in editor.weights:
        values = editor.array(weight)
        if decision.weights == "float16":
            check_half(weight, values)
        editor.add_tensor(
            helper.make_tensor(stored, _STORED[decision.weights], values.shape, values.reshape(-1))
        )
        editor.add_node("Cast", [stored], wide, to=TensorProto.FLOAT)
    return wide


def _use(editor: GraphEditor, decision: Decision, wide: str) -> None:
    assert decision.weight is not None
    editor.redirect(decision.weight, wide, lambda node: node.output[0] == decision.output)
