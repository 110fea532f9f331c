"""Element-wise operators between convolutions, on codes."""

from dataclasses import replace
from typing import Any

import onnx

from tts_compress.numerics.affine import Affine
from tts_compress.onnx.graph import attribute
from tts_compress.onnx.integer.emitter import CONTRIB, Coded, Emitter
from tts_compress.onnx.integer.region import Sum


def leaky_relu(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit max(x, slope · x) in the input's own code.

    Two vector operations take 0.88 to 0.93 of the time of QLinearLeakyRelu's table lookup (two
    residual blocks of 32 to 128 channels, x86 with VNNI), and keeping the code leaves the positive
    half exact.
    """
    source, slope = emitter.codes(node.input[0]), attribute(node, "alpha", 0.01)
    code = source.code
    zero, scale = emitter.zero(code.zero), emitter.scale(code.scale)
    inputs = [source.tensor, emitter.scale(code.scale * slope), zero, zero]
    inputs += [scale, zero, scale, zero]
    small = emitter.graph.make("QLinearAdd", inputs, f"{node.output[0]}.small", domain=CONTRIB)
    _define(emitter, node, "Max", [source.tensor, small], source)


def leaky_sum(emitter: Emitter, node: onnx.NodeProto, sum_: Sum) -> None:
    """Emit max(a + b, slope · (a + b)) straight from a and b.

    The sum itself would need a code that reaches as far down as up; what leaves the LeakyRelu
    hardly goes below zero, so its own code has almost half the step.
    """
    slope, graph, made = attribute(node, "alpha", 0.01), emitter.graph, node.output[0]
    low, high = emitter.ranges[sum_.made]
    out = Affine.spanning(low * slope * sum_.factor, high * sum_.factor)
    left, right = _pair(emitter, sum_.left, sum_.right)
    sides = []
    for factor in (sum_.factor, sum_.factor * slope):
        inputs = [left.tensor, *emitter.names(left.code.times(factor))]
        inputs += [right.tensor, *emitter.names(right.code.times(factor)), *emitter.names(out)]
        sides.append(graph.make("QLinearAdd", inputs, f"{made}.side", domain=CONTRIB))
    _define(emitter, node, "Max", sides, Coded("", out, left.spare))


def relu(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit max(x, 0); free where the codes begin at zero, as they do behind a convolution."""
    source = emitter.codes(node.input[0])
    if source.code.zero:
        _define(emitter, node, "Max", [source.tensor, emitter.zero(source.code.zero)], source)
    else:
        emitter.define(node.output[0], source)


def combine(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit the sum or the product of two tensors of one shape."""
    left, right = _pair(emitter, *node.input)
    out = emitter.code_of(node.output[0])
    operands = (left.tensor, *emitter.names(left.code), right.tensor, *emitter.names(right.code))
    inputs = [*operands, *emitter.names(out)]
    _define(emitter, node, f"QLinear{node.op_type}", inputs, Coded("", out, left.spare))


def scale(emitter: Emitter, node: onnx.NodeProto, factor: float) -> None:
    """Multiply by a constant: the bytes stay, only their meaning changes."""
    tensor = next(name for name in node.input if emitter.graph.constant(name) is None)
    source = emitter.codes(tensor)
    emitter.define(node.output[0], Coded(source.tensor, source.code.times(factor), source.spare))


def sigmoid(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit a sigmoid by table; its codes span 0 .. 1."""
    source, out = emitter.codes(node.input[0]), Affine(1 / 255, 0)
    inputs = [source.tensor, *emitter.names(source.code), *emitter.names(out)]
    _define(emitter, node, "QLinearSigmoid", inputs, Coded("", out, source.spare))


def tanh(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit tanh x = 2 · sigmoid 2x - 1: the same table, its input and output read differently."""
    source = emitter.codes(node.input[0])
    into = emitter.names(source.code.times(2))
    inputs = [source.tensor, *into, *emitter.names(Affine(1 / 254, 0))]
    out = Coded("", Affine(1 / 127, 127), source.spare)
    _define(emitter, node, "QLinearSigmoid", inputs, out)


def concatenate(emitter: Emitter, node: onnx.NodeProto) -> None:
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
    """Write one operator and record its codes, like `out`, as those of the node's output."""
    if op.startswith("QLinear"):
        attributes["domain"] = CONTRIB
    name = emitter.graph.make(op, inputs, f"{node.output[0]}.codes", **attributes)
    emitter.define(node.output[0], replace(out, tensor=name))


def _pair(emitter: Emitter, left: str, right: str) -> tuple[Coded, Coded]:
    """Return the codes of two tensors, equally wide."""
    first, second = emitter.codes(left), emitter.codes(right)
    spare = max(first.spare, second.spare)
    return emitter.widen(first, spare), emitter.widen(second, spare)
