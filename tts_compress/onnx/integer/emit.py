"""Emission of a region of a graph on 8-bit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.numerics.affine import Affine
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer import elementwise
from tts_compress.onnx.integer.convolutions import convolve, upsample
from tts_compress.onnx.integer.emitter import CONTRIB, Emitter
from tts_compress.onnx.integer.projection import project
from tts_compress.onnx.integer.region import Region, find_region, positive_factor
from tts_compress.onnx.rewrite.layout import cancel_transposes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx


__all__ = ["emit_integer"]

_ELEMENTWISE = {
    "LeakyRelu": elementwise.leaky_relu,
    "Relu": elementwise.relu,
    "Add": elementwise.total,
    "Mul": elementwise.total,
    "Tanh": elementwise.tanh,
    "Sigmoid": elementwise.sigmoid,
    "Concat": elementwise.concatenate,
}


def emit_integer(
    model: onnx.ModelProto,
    convolutions: frozenset[str],
    ranges: Mapping[str, tuple[float, float]],
) -> onnx.ModelProto:
    """Return the model with convolutions, and all that stands between them, on codes.

    Args:
        model: A graph in FP32; it is not changed.
        convolutions: Outputs of those that become integer.
        ranges: Lowest and highest value of every tensor that `observed_tensors` names.

    Raises:
        QuantizationError: A planned convolution is not there or has no integer form, or a tensor
            was not observed.
    """
    graph = Graph(model)
    region = find_region(graph, convolutions)
    emitter = Emitter(graph, ranges)
    graph.require_opset(CONTRIB, 1)
    for node in region.nodes:
        if node.op_type == "Concat":
            emitter.share([*node.input, node.output[0]])
    for node in region.nodes:
        graph.remove(node)
        _emit(emitter, region, node)
    for tensor in (tensor for node in region.nodes for tensor in node.output):
        unserved = graph.producer(tensor) is None and tensor not in region.skipped
        if unserved and (graph.readers(tensor) or tensor in graph.outputs):
            emitter.restore(tensor)
    # Codes and products stand channels last; so does what has been turned for its own sake.
    while cancel_transposes(graph):
        graph.sweep()
    return graph.finish()


def _emit(emitter: Emitter, region: Region, node: onnx.NodeProto) -> None:
    made = node.output[0]
    emitter.scope = node.name
    factor = positive_factor(emitter.graph, node)
    if made in region.skipped:
        return
    if made in region.real:
        project(emitter, node, region.real[made])
    elif made in region.sums:
        elementwise.leaky_sum(emitter, node, region.sums[made])
    elif node.op_type in {"Conv", "ConvTranspose"}:
        out = _clipped_code(emitter, made) if made in region.clipped else emitter.code_of(made)
        (convolve if node.op_type == "Conv" else upsample)(emitter, node, out)
    elif factor is not None:
        elementwise.scale(emitter, node, factor)
    else:
        _ELEMENTWISE[node.op_type](emitter, node)


def _clipped_code(emitter: Emitter, tensor: str) -> Affine:
    """Return a code that begins at zero: what lies below is clipped, as the Relu behind would."""
    (relu,) = emitter.graph.readers(tensor)
    span = emitter.code_of(relu.output[0])
    return Affine.spanning(0.0, span.scale * (255 - span.zero))
