"""What stands between convolutions, on codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.quantize.onnx.integer.emitter import CONTRIB, Coded
from tts_compress.quantize.onnx.rewrite.graph import real

if TYPE_CHECKING:
    import onnx

    from tts_compress.quantize.onnx.integer.affine import Affine
    from tts_compress.quantize.onnx.integer.emitter import Emitter

__all__ = ["add", "leaky_relu", "scale"]


def leaky_relu(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Emit max(x, slope · x) in the input's own code.

    Two vector operations are over twice as fast as the table lookup of QLinearLeakyRelu, and
    keeping the code leaves the positive half exact.
    """
    source, made = emitter.codes(node.input[0]), node.output[0]
    slope = real(node, "alpha", 0.01)
    graph, code = emitter.graph, source.code
    if emitter.plan.leaky_relu == "lookup":
        out = emitter.code_of(made)
        name = graph.fresh(f"{made}.codes")
        inputs = [source.tensor, *emitter.names(code), *emitter.names(out)]
        graph.add("QLinearLeakyRelu", inputs, [name], domain=CONTRIB, alpha=slope)
        emitter.define(made, Coded(name, out))
        return
    zero = emitter.zero(code.zero)
    scale = emitter.scale(code.scale)
    small = graph.add(
        "QLinearAdd",
        [source.tensor, emitter.scale(code.scale * slope), zero, zero, scale, zero, scale, zero],
        [graph.fresh(f"{made}.small")],
        domain=CONTRIB,
    )
    name = graph.add("Max", [source.tensor, small], [graph.fresh(f"{made}.codes")])
    emitter.define(made, Coded(name, code))


def add(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit the sum of two tensors of one shape."""
    left, right = (emitter.codes(tensor) for tensor in node.input)
    name = emitter.graph.fresh(f"{node.output[0]}.codes")
    operands = (left.tensor, *emitter.names(left.code), right.tensor, *emitter.names(right.code))
    emitter.graph.add("QLinearAdd", [*operands, *emitter.names(out)], [name], domain=CONTRIB)
    emitter.define(node.output[0], Coded(name, out))


def scale(emitter: Emitter, node: onnx.NodeProto, factor: float) -> None:
    """Multiply by a constant: the bytes stay, only their meaning changes."""
    source = emitter.codes(node.input[0])
    emitter.define(node.output[0], Coded(source.tensor, source.code.times(factor)))
