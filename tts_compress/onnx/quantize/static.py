"""INT8 arithmetic with calibrated activation ranges, in the portable QDQ form.

Every operator to be run in integers stands between `DequantizeLinear` and `QuantizeLinear`; a
runtime that knows the pattern fuses it, another one computes the same rounding in FP32.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tts_compress.numerics.affine import Affine
from tts_compress.numerics.histogram import Range
from tts_compress.numerics.weights import round_bias
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.quantize.weight_only import wide_weight
from tts_compress.onnx.weight_codes import WeightCodes
from tts_compress.recipes.formats import Activations

ROUNDED = ".rounded"
"""Suffix of a tensor as an integer kernel reads or returns it; without it the tensor is real."""


def observed_tensors(model: onnx.ModelProto, decisions: Sequence[Decision]) -> list[str]:
    """Return the activations whose ranges static quantization needs, in graph order."""
    chosen = _static(decisions)
    weights = {tensor.name for tensor in model.graph.initializer}
    observed: dict[str, None] = {}
    for node in model.graph.node:
        if node.output and node.output[0] in chosen:
            tensors = [*_activation_inputs(node, chosen[node.output[0]]), node.output[0]]
            observed |= dict.fromkeys(name for name in tensors if name not in weights)
    return list(observed)


def quantize_statically(
    graph: Graph, decisions: Sequence[Decision], ranges: Mapping[str, Range], codes: WeightCodes
) -> None:
    """Put quantize-dequantize pairs around the operators that static decisions name."""
    chosen = _static(decisions)
    nodes = [node for node in graph.nodes if node.output and node.output[0] in chosen]
    for node in nodes:
        decision = chosen[node.output[0]]
        source = _code(ranges, node.input[0]) if len(node.input) > 2 else None
        for position, name in enumerate(_activation_inputs(node, decision)):
            if name not in graph.initializers and name not in chosen:
                if graph.producer(f"{name}{ROUNDED}") is None:
                    _add_pair(graph, name, _code(ranges, name))
                graph.replace_input(node, position, f"{name}{ROUNDED}")
        if decision.weight is not None:
            _convert_weight(graph, node, decision, source, codes)
    for node in nodes:
        output = node.output[0]
        if output not in graph.outputs:  # the caller gets FP32
            graph.redirect(output, f"{output}{ROUNDED}")
            _add_pair(graph, output, _code(ranges, output))


def _static(decisions: Sequence[Decision]) -> dict[str, Decision]:
    return {d.output: d for d in decisions if d.activations == Activations.STATIC}


def _activation_inputs(node: onnx.NodeProto, decision: Decision) -> list[str]:
    """Return the activations: all inputs, or the first one if the operator has a weight."""
    return list(node.input) if decision.weight is None else [node.input[0]]


def _convert_weight(
    graph: Graph,
    node: onnx.NodeProto,
    decision: Decision,
    source: Affine | None,
    codes: WeightCodes,
) -> None:
    """Store weight and bias as integers; the bias in the scale of the accumulated products."""
    wide, weight_scales = wide_weight(graph, decision.tensor, decision, codes, multiplied=True)
    graph.replace_input(node, 1, wide)
    if source is None or not node.input[2]:
        return
    scales = np.float32(source.scale) * weight_scales
    bias = round_bias(graph.value(node.input[2]), scales.astype(np.float64))
    name = f"{node.output[0]}.rounded_bias"
    zeros = np.zeros(len(bias), np.int32)
    stored = graph.share_constants(name, int32=bias, scale=scales, zero=zeros)
    graph.replace_input(node, 2, graph.insert("DequantizeLinear", stored, name, axis=0))


def _add_pair(graph: Graph, name: str, code: Affine) -> None:
    """Round a tensor."""
    scale, zero = np.array(code.scale, np.float32), np.array(code.zero, np.uint8)
    constants = graph.share_constants(name, activation_scale=scale, activation_zero=zero)
    stored = graph.insert("QuantizeLinear", [name, *constants], f"{name}.quantized")
    graph.insert("DequantizeLinear", [stored, *constants], f"{name}{ROUNDED}")


def _code(ranges: Mapping[str, Range], tensor: str) -> Affine:
    return Affine.spanning(*ranges[tensor], single=True)
