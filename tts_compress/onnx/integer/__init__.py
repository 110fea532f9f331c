"""Integer arithmetic that really runs: fused operators on 8-bit codes, channels last."""

from collections.abc import Mapping

import onnx

from tts_compress.numerics.affine import LEVELS, Affine
from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.integer import elementwise
from tts_compress.onnx.integer.by_channel import emit_by_channel, tensors_by_channel
from tts_compress.onnx.integer.convolutions import convolve
from tts_compress.onnx.integer.emitter import CONTRIB, Emitter
from tts_compress.onnx.integer.projection import project
from tts_compress.onnx.integer.region import (
    Region,
    channel_factors,
    find_region,
    make_residuals_float,
    observed_tensors,
    positive_factor,
)
from tts_compress.onnx.integer.segments import observe_per_gain, per_gain
from tts_compress.onnx.rewrite.channels_last import cancel_transposes
from tts_compress.onnx.weight_codes import WeightCodes

__all__ = [
    "emit_by_channel",
    "emit_integer",
    "make_residuals_float",
    "observe_per_gain",
    "observed_tensors",
    "per_gain",
    "tensors_by_channel",
]

_ELEMENTWISE = {
    "LeakyRelu": elementwise.leaky_relu,
    "Relu": elementwise.relu,
    "Add": elementwise.combine,
    "Mul": elementwise.combine,
    "Tanh": elementwise.tanh,
    "Sigmoid": elementwise.sigmoid,
    "Concat": elementwise.concatenate,
}


def emit_integer(
    graph: Graph,
    convolutions: frozenset[str],
    ranges: Mapping[str, tuple[float, float]],
    weights: WeightCodes = WeightCodes(),  # noqa: B008  it is frozen
) -> None:
    """Put convolutions, and all that stands between them, on codes, and finish the graph.

    Args:
        graph: In FP32.
        convolutions: Outputs of those that become integer.
        ranges: Lowest and highest value of every tensor that `observed_tensors` names.
        weights: How the weights of convolutions are rounded.
    """
    region = find_region(graph, convolutions)
    emitter = Emitter(graph, ranges, weights)
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
            emitter.restore(tensor, _take_factors(graph, tensor))
    # Codes and products stand channels last; so does what has been turned for its own sake.
    while cancel_transposes(graph):
        graph.sweep()
    graph.finish()


def _take_factors(graph: Graph, tensor: str) -> Array | None:
    """Take out the product with a factor per channel that alone reads a tensor; return them."""
    node = graph.only_reader(tensor)
    factors = None if node is None else channel_factors(graph, node)
    if node is None or factors is None or node.output[0] in graph.outputs:
        return None
    graph.remove(node)
    graph.redirect(node.output[0], tensor)
    return factors


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
        convolve(emitter, node, out)
    elif factor is not None:
        elementwise.scale(emitter, node, factor)
    else:
        _ELEMENTWISE[node.op_type](emitter, node)


def _clipped_code(emitter: Emitter, tensor: str) -> Affine:
    """Return a code that begins at zero: what lies below is clipped, as the Relu behind would."""
    (relu,) = emitter.graph.readers(tensor)
    span = emitter.code_of(relu.output[0])
    return Affine.spanning(0.0, span.scale * (LEVELS - span.zero))
