"""Counting what a finished graph really holds, independently of what was meant to be done."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import TensorProto

from tts_compress.onnx.modules import WeightFinder
from tts_compress.onnx.quantize.prepare import optimize

__all__ = ["count_fused", "count_operators"]

_FUSED = {"QLinearConv", "QLinearMatMul"}
_INTEGER_FORM = {
    "ConvInteger": "Conv int8/dynamic",
    "MatMulInteger": "MatMul int8/dynamic",
    "QLinearConv": "Conv int8/static",
    "MatMulIntegerToFloat": "Conv int8/static",
}
"""What stands in a finished graph for which operator; a convolution whose result is read as real
numbers is a product of its frames."""
_NAMES: dict[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT: "float32",
}


def count_operators(model: onnx.ModelProto) -> Counter[str]:
    """Return how many operators with weights are stored and computed how.

    Keys read like a decision's label: `Conv int8/static` is a convolution with INT8 weights and
    calibrated INT8 activations.
    """
    weights = WeightFinder(model.graph)
    rounded = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    counts: Counter[str] = Counter()
    for node in model.graph.node:
        weight = weights.find(node)
        if weight is None:
            continue
        if node.op_type in _INTEGER_FORM:
            counts[_INTEGER_FORM[node.op_type]] += 1
        elif weight.data_type in _NAMES:
            stored = _NAMES[weight.data_type]
            arithmetic = _arithmetic(node, stored, weights, node.output[0] in rounded)
            counts[f"{node.op_type} {stored}/{arithmetic}"] += 1
    return counts


def count_fused(model: onnx.ModelProto) -> int:
    """Return how many convolutions and products onnxruntime really runs in calibrated integers.

    The portable form only asks for integers; a pattern the runtime does not recognise is computed
    in FP32, slower than before. So the runtime's own optimised graph is counted.

    Args:
        model: A finished graph in the portable form.
    """
    optimized = optimize(model, fuse=True)
    return sum(node.op_type in _FUSED for node in optimized.graph.node)


def _arithmetic(node: onnx.NodeProto, stored: str, weights: WeightFinder, is_rounded: bool) -> str:
    if stored == "float16" and node.op_type != "Gather":
        return "none" if weights.is_widened(node) else "float16"
    source = weights.producer(node.input[0])
    if stored != "int8" or source is None or source.op_type != "DequantizeLinear":
        return "none"
    # The portable form rounds what flows in and what flows out. A neighbour of a region on codes
    # reads what was dequantized too, but nobody quantized it just before.
    pair = weights.producer(source.input[0])
    rounded = is_rounded and pair is not None and pair.op_type == "QuantizeLinear"
    return "static" if rounded and node.op_type in {"Conv", "MatMul"} else "none"
