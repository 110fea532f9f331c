"""Integer arithmetic that really runs: fused operators on 8-bit codes, channels last."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx

from tts_compress.numerics.ranges import LEVELS, Affine
from tts_compress.onnx.graph import CONTRIB, Array, Graph
from tts_compress.onnx.integer.emitter import Coded, Emitter, convolve
from tts_compress.onnx.integer.projection import project
from tts_compress.onnx.integer.region import (
    Region,
    Sum,
    add_in_pairs,
    channel_factors,
    find_region,
    make_residuals_float,
    observed_tensors,
    positive_factor,
)
from tts_compress.onnx.modules import read_convolution
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.rewrite.normalization import cancel_transposes
from tts_compress.onnx.weight_codes import WeightCodes

__all__ = [
    "add_in_pairs",
    "emit_integer",
    "make_residuals_float",
    "observed_tensors",
]


def emit_integer(
    graph: Graph,
    convolutions: frozenset[str],
    ranges: Mapping[str, tuple[float, float]],
    weights: WeightCodes = WeightCodes(),  # noqa: B008  it is frozen
) -> None:
    """Compute convolutions, and the operators between them, on codes, and finish the graph.

    Without any convolution the graph stays as it is.

    Args:
        graph: In FP32.
        convolutions: Outputs of those that become integer.
        ranges: Lowest and highest value of every tensor that `observed_tensors` names.
        weights: How the weights of convolutions are rounded.
    """
    if not convolutions:
        return
    region = find_region(graph, convolutions)
    emitter = Emitter(graph, ranges, weights)
    graph.require_opset(CONTRIB, 1)
    for node in region.nodes:
        if node.op_type == "Concat":
            emitter.share([*node.input, node.output[0]])
    for node in region.nodes:
        graph.remove(node)
        _emit(emitter, region, node)
    for node in region.nodes:
        tensor = node.output[0]
        unserved = graph.producer(tensor) is None and tensor not in region.skipped
        if unserved and (graph.readers(tensor) or tensor in graph.outputs):
            emitter.restore(tensor, _take_factors(graph, node))
    # Codes and products stand channels last; so does what has been turned for its own sake.
    while cancel_transposes(graph):
        graph.sweep()
    graph.finish()


def _take_factors(graph: Graph, layer: onnx.NodeProto) -> Array | None:
    """Take out the `Mul` by channel that is a convolution's only reader; return its factors."""
    node, plain = graph.only_reader(layer.output[0]), read_convolution(graph, layer)
    if node is None or plain is None or node.output[0] in graph.outputs:
        return None
    factors = channel_factors(graph, node)
    if factors is None or len(factors) != len(plain.bias):
        return None  # or it makes several channels of one
    graph.remove(node)
    graph.redirect(node.output[0], layer.output[0])
    return factors


def _emit(emitter: Emitter, region: Region, node: onnx.NodeProto) -> None:
    output = node.output[0]
    emitter.scope = node.name
    factor = positive_factor(emitter.graph, node)
    if output in region.skipped:
        return
    if output in region.real:
        project(emitter, node, region.real[output])
    elif output in region.sums:
        _leaky_sum(emitter, node, region.sums[output])
    elif node.op_type in {"Conv", "ConvTranspose"}:
        clipped = output in region.clipped
        code = _clipped_code(emitter, output) if clipped else emitter.code_of(output)
        convolve(emitter, node, code)
    elif factor is not None:
        _scale(emitter, node, factor)
    else:
        _ELEMENTWISE[node.op_type](emitter, node)


def _clipped_code(emitter: Emitter, tensor: str) -> Affine:
    """Return a code that begins at zero: it clips lower values, as the Relu behind would."""
    (relu,) = emitter.graph.readers(tensor)
    span = emitter.code_of(relu.output[0])
    return Affine.spanning(0.0, span.scale * (LEVELS - span.zero))


def _leaky_relu(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit max(x, slope · x) in the input's own code.

    Two vector operations take 0.88 to 0.93 of the time of QLinearLeakyRelu's table lookup (two
    residual blocks of 32 to 128 channels, x86 with VNNI), and keeping the code leaves the positive
    half exact.
    """
    source, slope = emitter.codes(node.input[0]), attribute(node, "alpha", 0.01)
    zero, scale = emitter.zero(source.code.zero), emitter.scale(source.code.scale)
    small = emitter.scale(source.code.scale * slope)
    inputs = [source.tensor, small, zero, zero, scale, zero, scale, zero]
    below = emitter.graph.make("QLinearAdd", inputs, f"{node.output[0]}.small", domain=CONTRIB)
    _define(emitter, node, "Max", [source.tensor, below], source)


def _leaky_sum(emitter: Emitter, node: onnx.NodeProto, sum_: Sum) -> None:
    """Emit max(a + b, slope · (a + b)) straight from a and b.

    The sum itself would need a code that reaches as far down as up; the LeakyRelu's output hardly
    goes below zero, so its code has almost half the step.
    """
    slope, stem = attribute(node, "alpha", 0.01), f"{node.output[0]}.side"
    low, high = emitter.ranges[sum_.total]
    out = Affine.spanning(low * slope * sum_.factor, high * sum_.factor)
    left, right = _pair(emitter, sum_.left, sum_.right)
    sides = []
    for factor in (sum_.factor, sum_.factor * slope):
        inputs = [left.tensor, *emitter.names(left.code.times(factor))]
        inputs += [right.tensor, *emitter.names(right.code.times(factor)), *emitter.names(out)]
        sides.append(emitter.graph.make("QLinearAdd", inputs, stem, domain=CONTRIB))
    _define(emitter, node, "Max", sides, Coded("", out, left.spare))


def _relu(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit max(x, 0); free where the codes begin at zero, as they do behind a convolution."""
    source = emitter.codes(node.input[0])
    if source.code.zero:
        _define(emitter, node, "Max", [source.tensor, emitter.zero(source.code.zero)], source)
    else:
        emitter.define(node.output[0], source)


def _combine(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit the sum or the product of two tensors of one shape."""
    left, right = _pair(emitter, *node.input)
    out = emitter.code_of(node.output[0])
    inputs = [left.tensor, *emitter.names(left.code), right.tensor, *emitter.names(right.code)]
    inputs += emitter.names(out)
    _define(emitter, node, f"QLinear{node.op_type}", inputs, Coded("", out, left.spare))


def _scale(emitter: Emitter, node: onnx.NodeProto, factor: float) -> None:
    """Multiply by a constant: the bytes stay, only their meaning changes."""
    tensor = next(name for name in node.input if emitter.graph.constant(name) is None)
    source = emitter.codes(tensor)
    emitter.define(node.output[0], Coded(source.tensor, source.code.times(factor), source.spare))


def _sigmoid(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit a sigmoid by table; tanh x = 2 · sigmoid 2x - 1 takes the same table."""
    source, is_tanh = emitter.codes(node.input[0]), node.op_type == "Tanh"
    into = emitter.names(source.code.times(2) if is_tanh else source.code)
    table = Affine(1 / 254 if is_tanh else 1 / 255, 0)
    out = Affine(1 / 127, 127) if is_tanh else table
    inputs = [source.tensor, *into, *emitter.names(table)]
    _define(emitter, node, "QLinearSigmoid", inputs, Coded("", out, source.spare))


def _concatenate(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Put channels side by side."""
    parts = [emitter.narrow(emitter.codes(tensor)) for tensor in node.input]
    out = parts[0].code
    if all(part.code == out for part in parts):
        joined = [part.tensor for part in parts]
        _define(emitter, node, "Concat", joined, Coded("", out), axis=2, domain="")
        return
    out = emitter.code_of(node.output[0])
    inputs = [*emitter.names(out)]
    for part in parts:
        inputs += [part.tensor, *emitter.names(part.code)]
    _define(emitter, node, "QLinearConcat", inputs, Coded("", out), axis=2)


def _define(
    emitter: Emitter,
    node: onnx.NodeProto,
    op: str,
    inputs: list[str],
    out: Coded,
    **attributes: Any,
) -> None:
    """Write one operator and record its result, in the code of `out`, as the node's."""
    if op.startswith("QLinear"):
        attributes["domain"] = CONTRIB
    name = emitter.graph.make(op, inputs, f"{node.output[0]}.codes", **attributes)
    emitter.define(node.output[0], replace(out, tensor=name))


def _pair(emitter: Emitter, left: str, right: str) -> tuple[Coded, Coded]:
    """Return the codes of two tensors, equally wide but for one of a single channel."""
    first, second = emitter.codes(left), emitter.codes(right)
    if first.spare == second.spare:
        return first, second
    return emitter.narrow(first), emitter.narrow(second)


_ELEMENTWISE = {
    "LeakyRelu": _leaky_relu,
    "Relu": _relu,
    "Add": _combine,
    "Mul": _combine,
    "Tanh": _sigmoid,
    "Sigmoid": _sigmoid,
    "Concat": _concatenate,
}
"""Operators between convolutions, on codes."""
