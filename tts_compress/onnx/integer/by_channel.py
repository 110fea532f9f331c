"""Convolutions in integers that stand alone: real numbers in and out, a range for each channel.

Where everything between two convolutions runs on codes, a tensor has one scale, and every operator
rounds. Here only what a convolution multiplies is rounded, each channel by its own range, and its
result, by channel as well, or not at all. The operators between compute in FP32, which takes little
time beside convolutions.

Channels come first in real numbers, where scales by channel have fast kernels, and last in codes,
where convolutions have them. onnxruntime would move the transpositions between through the real
numbers until they cancel, and dequantize by the last axis, which takes ten times as long; it moves
none past a `Reshape`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from tts_compress.numerics.ranges import ChannelCodes
from tts_compress.numerics.weights import least_scales, round_bias
from tts_compress.onnx.graph import CONTRIB, Array, Graph
from tts_compress.onnx.integer.emitter import IntegerForm, integer_form
from tts_compress.onnx.weight_codes import WeightCodes

_MIDDLE = 128
"""The zero point that kernels see; biases make up for those of the channels."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution on codes."""

    node: onnx.NodeProto
    form: IntegerForm
    codes: Array
    """int8, (s·C_out, C_in, K)."""

    scales: Array
    """Scales of the results, (s·C_out,) in float64."""

    bias: Array
    """In real numbers, with what zero points of the channels add, (s·C_out,) in float64."""

    @property
    def name(self) -> str:
        """Its result in the graph."""
        return str(self.node.output[0])

    @property
    def stem(self) -> str:
        """Beginning of its operators' names, by which their time counts as the layer's."""
        return str(self.node.name or self.name)


def emit_by_channel(
    graph: Graph,
    rounds_result: Mapping[str, bool],
    codes: Mapping[str, ChannelCodes],
    weights: WeightCodes,
) -> None:
    """Put convolutions on codes, and finish the graph.

    Args:
        graph: In FP32.
        rounds_result: The convolutions, by their outputs; True where their results are rounded.
        codes: Those of the tensors that `tensors_by_channel` names.
        weights: How the weights of convolutions are rounded; of those here, the weights times the
            scales of what they multiply.
    """
    if not rounds_result:
        return
    graph.require_opset(CONTRIB, 1)
    for node in [node for node in graph.nodes if node.output[0] in rounds_result]:
        result = codes[node.output[0]] if rounds_result[node.output[0]] else None
        layer = _layer(graph, node, codes[node.input[0]], result, weights)
        read = _rounded(graph, layer, codes[node.input[0]])
        graph.remove(node)
        if result is not None:
            _convolve(graph, layer, read, result)
        else:
            _multiply(graph, layer, read)
    graph.finish()


def tensors_by_channel(graph: Graph, rounds_result: Mapping[str, bool]) -> list[str]:
    """Return the tensors whose ranges `emit_by_channel` asks for, in graph order."""
    wanted: dict[str, None] = {}
    for node in graph.nodes:
        if node.output[0] in rounds_result:
            wanted[node.input[0]] = None
            if rounds_result[node.output[0]]:
                wanted[node.output[0]] = None
    return list(wanted)


def _layer(
    graph: Graph,
    node: onnx.NodeProto,
    read: ChannelCodes,
    result: ChannelCodes | None,
    weights: WeightCodes,
) -> _Layer:
    form = integer_form(graph, node)
    assert form is not None
    weight = form.convolution.weight * read.scales[:, None]
    bias, least = form.convolution.bias.astype(np.float64), None
    if result is not None:  # whose zero points are part of the bias
        least = np.tile(least_scales(np.abs(bias) + _MIDDLE * result.scales, 1.0), form.phases)
    codes, scales = weights.rounded(node.output[0], weight, multiplied=True, least=least)
    wide = scales.astype(np.float64)
    moved = codes.sum(2, dtype=np.float64) @ (_MIDDLE - read.zeros.astype(np.float64))
    return _Layer(node, form, codes, wide, np.tile(bias, form.phases) + moved * wide)


def _rounded(graph: Graph, layer: _Layer, read: ChannelCodes) -> str:
    """Return the codes of what a convolution reads, (B, C, T + pads)."""
    source, pads = layer.node.input[0], layer.form.convolution.pads
    first = f"{source}.by_channel"
    if graph.producer(first) is None:
        scales = graph.add_constant(f"{first}.scales", read.scales)
        zeros = graph.add_constant(f"{first}.zeros", read.zeros)
        # Nor does it take what stands between codes and codes for an operator on codes, past one.
        real = _stop(graph, source, f"{first}.real", (0, len(read.zeros), -1))
        name = graph.fresh(f"{layer.stem}/QuantizeLinear")
        graph.add("QuantizeLinear", [real, scales, zeros], [first], name, axis=1)
    if not any(pads):
        return first
    padded = f"{first}.{pads[0]}.{pads[1]}"
    if graph.producer(padded) is None:
        sides = [_edge(graph, first, read, pad) for pad in pads]
        parts = [part for part in (sides[0], first, sides[1]) if part]
        graph.insert("Concat", parts, padded, axis=2)
    return padded


def _last(graph: Graph, codes: str, channels: int) -> str:
    """Return codes (B, C, T) with their channels last."""
    last = f"{codes}.last"
    if graph.producer(last) is None:
        turned = graph.make("Transpose", [codes], f"{codes}.turned", perm=[0, 2, 1])
        _stop(graph, turned, last, (0, -1, channels))
    return last


def _edge(graph: Graph, codes: str, read: ChannelCodes, frames: int) -> str | None:
    """Return frames of zero, (B, C, frames): each channel has its own code of it."""
    if not frames:
        return None
    column = graph.add_constant(f"{codes}.edge", np.repeat(read.zeros[None, :, None], frames, 2))
    shape = f"{codes}.edge_shape"
    if graph.producer(shape) is None:
        size = graph.make("Shape", [codes], f"{codes}.shape")
        batch = graph.make("Slice", [size, *_bounds(graph, 0, 1, 0)], f"{codes}.batch")
        ones = graph.share_constant("tts_compress.ones", np.ones(2, np.int64))
        graph.insert("Concat", [batch, ones], shape, axis=0)
    return graph.make("Expand", [column, shape], f"{codes}.side")


def _bounds(graph: Graph, *values: int) -> list[str]:
    """Return begin, end and axis of a `Slice`."""
    return [
        graph.share_constant(f"tts_compress.bound.{value}", np.array([value], np.int64))
        for value in values
    ]


def _stop(graph: Graph, tensor: str, output: str, shape: tuple[int, ...]) -> str:
    """Write a tensor again, in the same shape, past which no transposition is moved."""
    sizes = graph.add_constant(f"{output}.shape", np.array(shape))
    return graph.insert("Reshape", [tensor, sizes], output)


def _convolve(graph: Graph, layer: _Layer, read: str, codes: ChannelCodes) -> None:
    """Emit a convolution whose results are rounded by channel."""
    phases, plain, stem = layer.form.phases, layer.form.convolution, layer.stem
    steps = np.tile(codes.scales.astype(np.float64), phases)
    offsets = np.tile(codes.zeros.astype(np.float64), phases) - _MIDDLE
    scales = (layer.scales / steps).astype(np.float32)
    bias = round_bias(layer.bias / steps + offsets, scales.astype(np.float64))
    unit, middle = _plain_codes(graph)
    inputs = [
        *(_last(graph, read, layer.codes.shape[1]), unit, middle),
        graph.add_constant(f"{stem}.weight", layer.codes),
        graph.add_constant(f"{stem}.weight_scale", scales),
        graph.add_constant(f"{stem}.weight_zero", np.zeros(len(scales), np.int8)),
        *(unit, middle),
        graph.add_constant(f"{stem}.bias", bias),
    ]
    result = graph.make(
        "QLinearConv",
        inputs,
        f"{stem}.codes",
        graph.fresh(f"{layer.node.name}/QLinearConv"),
        domain=CONTRIB,
        channels_last=1,
        kernel_shape=[plain.weight.shape[2]],
        dilations=[plain.dilation],
        strides=[plain.stride],
    )
    real = _first(graph, layer, result, f"{stem}.codes_first")
    names = [
        graph.add_constant(f"{stem}.{name}", value)
        for name, value in (("scales", codes.scales), ("zeros", codes.zeros))
    ]
    name = graph.fresh(f"{stem}/DequantizeLinear")
    graph.add("DequantizeLinear", [real, *names], [layer.name], name, axis=1)


def _multiply(graph: Graph, layer: _Layer, read: str) -> None:
    """Emit a convolution as a product of neighbourhoods, laid side by side, in real numbers."""
    plain, stem = layer.form.convolution, layer.stem
    outputs, _, kernel_size = layer.codes.shape
    if kernel_size > 1:
        # Whole channels are copied, and turned at once: pieces of a frame would take twice as long.
        last = plain.dilation * (kernel_size - 1)
        taps = [
            graph.make("Slice", [read, *_bounds(graph, *ends)], f"{stem}.tap")
            for begin in range(0, last + 1, plain.dilation)
            for ends in [(begin, begin - last or np.iinfo(np.int64).max, 2)]
        ]
        read = graph.make("Concat", taps, f"{stem}.taps", axis=1)
    read = _last(graph, read, layer.codes[0].size)
    unit, middle = _plain_codes(graph)
    inputs = [
        read,
        graph.add_constant(f"{stem}.weight", layer.codes.transpose(2, 1, 0).reshape(-1, outputs)),
        unit,
        graph.add_constant(f"{stem}.weight_scale", layer.scales.astype(np.float32)),
        middle,
        graph.add_constant(f"{stem}.weight_zero", np.zeros(outputs, np.int8)),
        graph.add_constant(f"{stem}.bias", layer.bias.astype(np.float32)),
    ]
    name = graph.fresh(f"{layer.node.name}/MatMulIntegerToFloat")
    operator = "MatMulIntegerToFloat"
    result = graph.make(operator, inputs, f"{stem}.product", name, domain=CONTRIB)
    _first(graph, layer, result, layer.name)


def _plain_codes(graph: Graph) -> tuple[str, str]:
    """Return the scale and zero point of codes whose real ones are by channel."""
    return (
        graph.share_constant("tts_compress.scale_one", np.array(1, np.float32)),
        graph.share_constant("tts_compress.zero_middle", np.array(_MIDDLE, np.uint8)),
    )


def _first(graph: Graph, layer: _Layer, result: str, output: str) -> str:
    """Turn a result channels first, samples of all phases in their order; return `output`."""
    form, stem = layer.form, layer.stem
    channels = len(form.convolution.bias)
    if form.phases > 1:
        shape = graph.add_constant(f"{stem}.samples", np.array([0, -1, channels]))
        samples = graph.make("Reshape", [result, shape], f"{stem}.phases")
        tail = form.convolution.pads[0] * form.phases - form.skip
        ends = (form.skip, -tail if tail else np.iinfo(np.int64).max, 1)
        result = graph.make("Slice", [samples, *_bounds(graph, *ends)], f"{stem}.kept")
    turned = graph.make("Transpose", [result], f"{stem}.turned", perm=[0, 2, 1])
    return _stop(graph, turned, output, (0, channels, -1))
