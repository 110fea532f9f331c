"""Counting what a finished graph really holds, independently of what was meant to be done."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto

from tts_compress.quantize.onnx.prepare import optimize

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["count_fused", "count_operators"]

_WEIGHT_INPUT = {"Conv": 1, "ConvTranspose": 1, "MatMul": 1, "Gather": 0}
_FUSED = {"QLinearConv", "QLinearMatMul"}
_INTEGER_FORM = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
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
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    producer = {name: node for node in model.graph.node for name in node.output}
    counts: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type in _INTEGER_FORM:
            counts[f"{_INTEGER_FORM[node.op_type]} int8/dynamic"] += 1
        elif node.op_type in _WEIGHT_INPUT:
            stored = _stored(node.input[_WEIGHT_INPUT[node.op_type]], tensors, producer)
            if stored is not None:
                counts[f"{node.op_type} {stored}/{_arithmetic(node, stored, producer)}"] += 1
    return counts


def count_fused(model: onnx.ModelProto) -> int:
    """Return how many convolutions and products onnxruntime really runs in calibrated integers.

    The portable form only asks for integers; a pattern the runtime does not recognise is computed
    in FP32, slower than before. So the runtime's own optimised graph is counted.
    """
    optimized = optimize(model, fuse=True)
    return sum(node.op_type in _FUSED for node in optimized.graph.node)


def _stored(
    weight: str,
    tensors: Mapping[str, onnx.TensorProto],
    producer: Mapping[str, onnx.NodeProto],
) -> str | None:
    """Return how a weight is stored; None where the input is not a weight."""
    source = producer.get(weight)
    if source is not None and source.op_type in {"DequantizeLinear", "Cast"}:
        weight = source.input[0]
    if weight not in tensors or len(tensors[weight].dims) < 2:
        return None
    return _NAMES.get(tensors[weight].data_type)


def _arithmetic(node: onnx.NodeProto, stored: str, producer: Mapping[str, onnx.NodeProto]) -> str:
    if stored == "float16" and node.op_type != "Gather":
        # A stored-only weight passes through a cast.
        return "none" if node.input[_WEIGHT_INPUT[node.op_type]] in producer else "float16"
    source = producer.get(node.input[0])
    rounded = source is not None and source.op_type == "DequantizeLinear"
    integer = stored == "int8" and rounded and node.op_type in {"Conv", "MatMul"}
    return "static" if integer else "none"
