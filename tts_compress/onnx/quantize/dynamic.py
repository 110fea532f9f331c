"""INT8 arithmetic with activation ranges found at run time."""

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.numerics.weights import round_weight
from tts_compress.onnx.four_bits import store_blocks
from tts_compress.onnx.graph import Array, Graph, copy_attributes
from tts_compress.onnx.integer.emitter import CONTRIB
from tts_compress.onnx.modules import INTEGER_LSTM
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.weight_codes import WeightCodes
from tts_compress.recipes.formats import Activations


def quantize_dynamically(graph: Graph, decisions: Iterable[Decision], codes: WeightCodes) -> None:
    """Replace operators by their integer forms.

    onnxruntime's kernels want opposite weight types: `ConvInteger` is four times faster with
    unsigned weights, `MatMulInteger` two and a half times with signed ones. Products of two
    unsigned bytes are added in 32 bits everywhere, so only the signed ones are kept from overflow.
    """
    chosen = {d.output: d for d in decisions if d.activations == Activations.DYNAMIC}
    for node in [node for node in graph.nodes if node.output and node.output[0] in chosen]:
        decision = chosen[node.output[0]]
        graph.remove(node)
        _FORMS[decision.operator](graph, node, decision, codes)


def _convolution(
    graph: Graph, node: onnx.NodeProto, decision: Decision, codes: WeightCodes
) -> None:
    weight, output = graph.value(decision.tensor), node.output[0]
    stored, scales = _unsigned_weight(graph, decision, codes)
    middle = graph.share_constant("tts_compress.uint8_middle", np.array(128, np.uint8))
    activation, scale, zero = _rounded_input(graph, node.input[0])
    inputs, attributes = [activation, stored, zero, middle], copy_attributes(node)
    accumulated = graph.insert("ConvInteger", inputs, f"{output}.int32", **attributes)
    per_channel = [1, -1] + [1] * (weight.ndim - 2)
    weight_scale = graph.share_constant(f"{decision.tensor}.scale", scales.reshape(per_channel))
    bias = None
    if len(node.input) > 2:
        values = graph.value(node.input[2]).reshape(per_channel)
        bias = graph.share_constant(f"{output}.channel_bias", values)
    _scaled(graph, accumulated, [scale, weight_scale], bias, output)


def _unsigned_weight(graph: Graph, decision: Decision, codes: WeightCodes) -> tuple[str, Array]:
    """Store a convolution's weight, unsigned with a zero point of 128 for the faster kernel."""
    weight, name = graph.value(decision.tensor), f"{decision.tensor}.uint8"
    blocks = codes.blocks(decision.output, weight)
    if blocks is None:
        rounded, scales = codes.rounded(decision.output, weight, multiplied=False)
        unsigned = (rounded.astype(np.int16) + 128).astype(np.uint8)
        return graph.share_constant(name, unsigned), scales
    if graph.producer(name) is None:
        signed = store_blocks(graph, decision.tensor, blocks, weight.shape)
        wide = graph.insert("Cast", [signed], f"{name}.signed", to=TensorProto.INT32)
        middle = graph.share_constant("tts_compress.int32_middle", np.array(128, np.int32))
        shifted = graph.insert("Add", [wide, middle], f"{name}.shifted")
        graph.insert("Cast", [shifted], name, to=TensorProto.UINT8)
    return name, blocks.scales


def _product(graph: Graph, node: onnx.NodeProto, decision: Decision, codes: WeightCodes) -> None:
    weight, name = graph.value(decision.tensor), f"{decision.tensor}.int8"
    blocks = codes.blocks(decision.output, weight.T)
    if blocks is None:
        rounded, scales = codes.rounded(decision.output, weight.T, multiplied=True)
        stored = graph.share_constant(name, np.ascontiguousarray(rounded.T))
    else:
        stored, scales = name, blocks.scales
        if graph.producer(name) is None:
            turned = store_blocks(graph, decision.tensor, blocks, weight.T.shape)
            graph.insert("Transpose", [turned], name, perm=[1, 0])
    weight_scale = graph.share_constant(f"{decision.tensor}.scale", scales)
    (activation, scale, zero), output = _rounded_input(graph, node.input[0]), node.output[0]
    accumulated = graph.insert("MatMulInteger", [activation, stored, zero], f"{output}.int32")
    _scaled(graph, accumulated, [scale, weight_scale], None, output)


def _recurrence(graph: Graph, node: onnx.NodeProto, decision: Decision, _: WeightCodes) -> None:
    """Write an LSTM whose products are integer; states and gates stay real.

    The operator takes weights (directions, inputs, 4 · units), as its kernel multiplies them, and a
    scale for each direction, gate and unit; everything else as the LSTM does.
    """
    inputs = [*node.input, *[""] * (8 - len(node.input))]
    rounded = []
    for position, tensor in enumerate(decision.tensors, start=1):
        parts = [round_weight(part, 0, multiplied=True) for part in graph.value(tensor)]
        codes = np.stack([codes.T for codes, _ in parts])
        scales = np.stack([scales for _, scales in parts])
        inputs[position] = graph.share_constant(f"{tensor}.int8", codes)
        zeros = np.zeros(scales.shape, np.int8)
        rounded += graph.share_constants(tensor, scale=scales, zero=zeros)
    graph.require_opset(CONTRIB, 1)
    attributes = {name: value for name, value in copy_attributes(node).items() if name != "layout"}
    name = node.name or node.output[0]
    inputs, outputs = [*inputs, *rounded], list(node.output)
    graph.add(INTEGER_LSTM, inputs, outputs, name, domain=CONTRIB, **attributes)


def _rounded_input(graph: Graph, tensor: str) -> tuple[str, str, str]:
    """Return an activation as uint8 with its scale and zero point; shared by all its readers."""
    names = (f"{tensor}.uint8", f"{tensor}.uint8_scale", f"{tensor}.uint8_zero")
    if graph.producer(names[0]) is None:
        graph.add("DynamicQuantizeLinear", [tensor], names)
    return names


def _scaled(
    graph: Graph, accumulated: str, scales: list[str], bias: str | None, output: str
) -> None:
    """Turn 32-bit sums back into the FP32 tensor that readers expect."""
    wide = graph.insert("Cast", [accumulated], f"{output}.float", to=TensorProto.FLOAT)
    scale = graph.insert("Mul", scales, f"{output}.scale")
    scaled = graph.insert("Mul", [wide, scale], output if bias is None else f"{output}.scaled")
    if bias is not None:
        graph.insert("Add", [scaled, bias], output)


_FORMS = {"Conv": _convolution, "MatMul": _product, "LSTM": _recurrence}
