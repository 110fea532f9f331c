"""Weights stored small, arithmetic in FP32."""

from collections.abc import Iterable

import numpy as np
from onnx import TensorProto, helper

from tts_compress.numerics.weights import round_weight
from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.quantize.float16 import check_half
from tts_compress.recipes.formats import Activations, Weights

_STORED = {Weights.FLOAT16: TensorProto.FLOAT16, Weights.BFLOAT16: TensorProto.BFLOAT16}


def store_weights(graph: Graph, decisions: Iterable[Decision]) -> None:
    """Store weights of operators whose activations stay FP32 in the types of their decisions."""
    for decision in decisions:
        if decision.activations != Activations.NONE or decision.weights == Weights.FLOAT32:
            continue
        if decision.weights == Weights.INT8:
            wide, _ = dequantized_weight(graph, decision, multiplied=False)
        else:
            wide = _widened_weight(graph, decision)
        node = graph.producer(decision.output)
        assert node is not None
        graph.replace_input(node, list(node.input).index(decision.tensor), wide)


def dequantized_weight(graph: Graph, decision: Decision, *, multiplied: bool) -> tuple[str, Array]:
    """Store a weight as INT8, once for all operators that share it.

    Args:
        graph: The graph.
        decision: Names the weight.
        multiplied: True if integer kernels multiply its codes; see `round_weight`.

    Returns:
        The tensor that holds it as FP32 at run time, and its scales.
    """
    weight = decision.tensor
    wide = f"{weight}.dequantized"
    codes, scales = round_weight(graph.value(weight), decision.axis, multiplied=multiplied)
    if graph.producer(wide) is None:
        stored = [
            graph.share_constant(f"{weight}.int8", codes),
            graph.share_constant(f"{weight}.scale", scales),
            graph.share_constant(f"{weight}.zero", np.zeros(len(scales), np.int8)),
        ]
        graph.insert("DequantizeLinear", stored, wide, axis=decision.axis)
    return wide, scales


def _widened_weight(graph: Graph, decision: Decision) -> str:
    weight = decision.tensor
    wide = f"{weight}.widened"
    if graph.producer(wide) is None:
        values = graph.value(weight)
        if decision.weights == Weights.FLOAT16:
            check_half(weight, values)
        name = f"{weight}.{decision.weights}"
        small = helper.make_tensor(name, _STORED[decision.weights], values.shape, values.ravel())
        graph.insert("Cast", [graph.share_constant(name, small)], wide, to=TensorProto.FLOAT)
    return wide
