"""Weights stored small, arithmetic in FP32."""

from collections.abc import Iterable

import numpy as np
from onnx import TensorProto, helper

from tts_compress.numerics.weights import usable_scales
from tts_compress.onnx.four_bits import store_blocks
from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.quantize.float16 import check_half
from tts_compress.onnx.weight_codes import WeightCodes
from tts_compress.recipes.formats import Activations, Weights

_LARGEST = 127 * 256 + 127
"""Largest code that two parts of 8 bits hold, neither of them -128."""

_STORED = {Weights.FLOAT16: TensorProto.FLOAT16, Weights.BFLOAT16: TensorProto.BFLOAT16}


def store_weights(graph: Graph, decisions: Iterable[Decision], codes: WeightCodes) -> None:
    """Store weights of operators whose activations stay FP32 in the types of their decisions."""
    for decision in decisions:
        if decision.activations != Activations.NONE or decision.weights == Weights.FLOAT32:
            continue
        node = graph.producer(decision.output)
        assert node is not None
        for tensor in decision.tensors:
            if decision.weights in {Weights.INT8, Weights.INT4}:
                wide, _ = wide_weight(graph, tensor, decision, codes, multiplied=False)
            elif decision.weights == Weights.INT16:
                wide = _added_weight(graph, tensor, decision.axis)
            else:
                wide = _widened_weight(graph, tensor, decision.weights)
            graph.replace_input(node, list(node.input).index(tensor), wide)


def wide_weight(
    graph: Graph, weight: str, decision: Decision, codes: WeightCodes, *, multiplied: bool
) -> tuple[str, Array]:
    """Store a weight in eight or four bits, once for all operators that share it.

    Args:
        graph: The graph.
        weight: Its name.
        decision: For the operator.
        codes: How weights are rounded.
        multiplied: True if integer kernels multiply its codes; see `round_weight`.

    Returns:
        The tensor that holds it as FP32 at run time, and its scales.
    """
    axis, rows = decision.axis, np.moveaxis(graph.value(weight), decision.axis, 0)
    blocks = codes.blocks(decision.output, rows)
    if blocks is None:
        wide = f"{weight}.dequantized"
        rounded, scales = codes.rounded(decision.output, rows, multiplied=multiplied)
    else:
        wide, scales = f"{weight}.from_int4", blocks.scales
    if graph.producer(wide) is not None:
        return wide, scales
    if blocks is None:
        stored = graph.share_constant(f"{weight}.int8", np.moveaxis(rounded, 0, axis))
    else:
        stored = store_blocks(graph, weight, blocks, rows.shape)
        if axis:
            order = [*range(1, axis + 1), 0, *range(axis + 1, rows.ndim)]
            stored = graph.insert("Transpose", [stored], f"{weight}.turned", perm=order)
    steps = graph.share_constants(weight, scale=scales, zero=np.zeros(len(scales), np.int8))
    return graph.insert("DequantizeLinear", [stored, *steps], wide, axis=axis), scales


def _added_weight(graph: Graph, weight: str, axis: int) -> str:
    """Store a weight in 16 bits, as two of 8 whose real numbers are added at run time."""
    wide = f"{weight}.added"
    if graph.producer(wide) is not None:
        return wide
    values = graph.value(weight).astype(np.float64)
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    scales = usable_scales(np.abs(rows).max(1) / _LARGEST)
    shape = [-1 if dimension == axis else 1 for dimension in range(values.ndim)]
    codes = np.rint(values / scales.reshape(shape)).clip(-_LARGEST, _LARGEST)
    high = np.floor(codes / 256 + 0.5)
    zeros = graph.share_constant(f"{weight}.zero", np.zeros(len(scales), np.int8))
    parts = []
    for name, part, factor in (("high", high, 256), ("low", codes - 256 * high, 1)):
        stored = graph.share_constant(f"{weight}.{name}", part.astype(np.int8))
        scale = graph.share_constant(f"{weight}.{name}_scale", (factor * scales).astype(np.float32))
        inputs = [stored, scale, zeros]
        parts.append(graph.insert("DequantizeLinear", inputs, f"{weight}.{name}.wide", axis=axis))
    return graph.insert("Add", parts, wide)


def _widened_weight(graph: Graph, weight: str, kind: Weights) -> str:
    wide, name = f"{weight}.widened", f"{weight}.{kind}"
    if graph.producer(wide) is None:
        values = graph.value(weight)
        if kind == Weights.FLOAT16:
            check_half(weight, values)
        stored = values.astype(helper.tensor_dtype_to_np_dtype(_STORED[kind]))
        # Bytes as they are: element by element a 16-bit number would take three.
        small = helper.make_tensor(name, _STORED[kind], values.shape, stored.tobytes(), raw=True)
        graph.insert("Cast", [graph.share_constant(name, small)], wide, to=TensorProto.FLOAT)
    return wide
