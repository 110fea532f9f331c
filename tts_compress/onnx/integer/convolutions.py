"""Convolutions on codes, channels last: no layout change stands between two of them."""

from dataclasses import dataclass, replace

import numpy as np
import onnx

from tts_compress.numerics.affine import Affine
from tts_compress.numerics.weights import round_bias, round_weight
from tts_compress.onnx.graph import Array, Graph, attribute
from tts_compress.onnx.integer.emitter import CONTRIB, Coded, Emitter

_FEWEST, _UNIT = 16, 4
"""onnxruntime's symmetric convolution wants at least 16 output channels, in multiples of four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The numbers of one convolution along time."""

    name: str
    weight: Array
    """Shape (C_out, C_in, K)."""

    bias: Array
    """Shape (C_out,)."""

    pads: tuple[int, int]
    dilation: int = 1
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConvolution:
    """The ordinary convolution that a transposed one with stride s amounts to."""

    weight: Array
    """Shape (s·C_out, C_in, K/s): output channel φ·C_out + c is phase φ of channel c."""

    stride: int
    pad: int
    """Zeros on either side of the input; the result then has T + pad frames of s samples."""

    skip: int
    """Samples to drop at the beginning of the result, which then has s·T of them."""


def phase_convolution(node: onnx.NodeProto, weight: Array) -> PhaseConvolution | None:
    """Return the equivalent of a ConvTranspose, or None where there is none this simple.

    With stride s the outputs n = s·m + φ of one phase φ are an ordinary convolution of the input,
    so s·C output channels, laid out as (T, s·C) and read as (s·T, C), are the upsampled signal.
    Channels last, that reading moves no data; and the convolution has fast integer kernels, while
    a transposed one has none.

    Required: one spatial axis, one group, no dilation, a kernel of whole strides, and paddings that
    make the output exactly s times as long as the input.

    Args:
        node: The ConvTranspose.
        weight: Its weight, (C_in, C_out, K).
    """
    if node.op_type != "ConvTranspose" or weight.ndim != 3 or attribute(node, "group", 1) != 1:
        return None
    (stride,), (extra,) = attribute(node, "strides", (1,)), attribute(node, "output_padding", (0,))
    begin, end = attribute(node, "pads", (0, 0))
    kernel = weight.shape[2]
    plain = attribute(node, "dilations", (1,)) == (1,) and not attribute(node, "output_shape", ())
    if (attribute(node, "auto_pad", "NOTSET") != "NOTSET") or not plain:
        return None
    if kernel % stride or kernel - begin - end + extra != stride:
        return None
    size = kernel // stride
    # Tap t of phase φ is kernel position φ + s·(size - 1 - t): the newest frame meets the kernel's
    # beginning. The result starts `begin` samples before the output.
    frames = weight.reshape(weight.shape[0], weight.shape[1], size, stride)[:, :, ::-1]
    phases = frames.transpose(3, 1, 0, 2).reshape(stride * weight.shape[1], weight.shape[0], size)
    return PhaseConvolution(weight=phases, stride=stride, pad=size - 1, skip=begin)


def is_convolution(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return True if a node is a convolution along time that has an integer form here."""
    weight = graph.constant(node.input[1]) if len(node.input) > 1 else None
    if weight is None or weight.ndim != 3 or weight.dtype != np.float32:
        return False
    if len(node.input) > 2 and graph.constant(node.input[2]) is None:
        return False
    if node.op_type == "ConvTranspose":
        return phase_convolution(node, weight) is not None
    return (
        node.op_type == "Conv"
        and attribute(node, "auto_pad", "NOTSET") == "NOTSET"
        and attribute(node, "group", 1) == 1
    )


def convolve(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit a Conv on the codes of its input."""
    weight = emitter.graph.value(node.input[1])
    begin, end = attribute(node, "pads", (0, 0))
    kernel = Kernel(
        name=node.output[0],
        weight=weight,
        bias=_bias(emitter, node, weight.shape[0]),
        pads=(begin, end),
        dilation=attribute(node, "dilations", (1,))[0],
        stride=attribute(node, "strides", (1,))[0],
    )
    source = emitter.codes(node.input[0])
    spare = spare_channels(len(weight))
    kernel = replace(kernel, weight=_rows(weight, spare), bias=_rows(kernel.bias, spare))
    made = _emit(emitter, source, kernel, out)
    emitter.define(node.output[0], Coded(made, out, spare))


def upsample(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit a ConvTranspose as a convolution into phases, which channels last are samples."""
    weight = emitter.graph.value(node.input[1])
    phases = phase_convolution(node, weight)
    assert phases is not None
    graph, stem, channels = emitter.graph, node.output[0], weight.shape[1]
    spare, (columns, size) = spare_channels(channels), phases.weight.shape[1:]
    wide = [_rows(p, spare) for p in phases.weight.reshape(-1, channels, columns, size)]
    bias = _rows(_bias(emitter, node, channels), spare)
    kernel = Kernel(
        name=f"{stem}.phases",
        weight=np.concatenate(wide),
        bias=np.tile(bias, phases.stride),
        pads=(phases.pad, phases.pad),
    )
    source = emitter.codes(node.input[0])
    frames = _emit(emitter, source, kernel, out)  # (B, T + pad, s·C)
    shape = graph.add_constant(f"{stem}.samples_shape", np.array([0, -1, channels + spare]))
    samples = graph.add("Reshape", [frames, shape], [graph.fresh(f"{stem}.samples")])
    made = graph.fresh(f"{stem}.codes")
    # Keep the s·T samples that the transposed convolution would have made.
    tail = phases.pad * phases.stride - phases.skip
    bounds = (phases.skip, -tail if tail else np.iinfo(np.int64).max, 1)
    names = ("cut_begin", "cut_end", "cut_axis")
    cut = [
        graph.add_constant(f"{made}.{name}", np.array([bound], np.int64))
        for name, bound in zip(names, bounds, strict=True)
    ]
    graph.add("Slice", [samples, *cut], [made])
    emitter.define(stem, Coded(made, out, spare))


def _emit(emitter: Emitter, source: Coded, kernel: Kernel, out: Affine) -> str:
    graph = emitter.graph
    columns = spare_columns(kernel.weight, source.spare)
    codes, scales = round_weight(columns, 0, multiplied=True)
    weights = [
        graph.add_constant(f"{kernel.name}.weight", codes),
        graph.add_constant(f"{kernel.name}.weight_scale", scales),
        graph.add_constant(f"{kernel.name}.weight_zero", np.zeros(len(codes), np.int8)),
    ]
    # The accumulator counts in units of input scale times weight scale.
    bias = round_bias(kernel.bias, source.code.scale * scales.astype(np.float64))
    bias_name = graph.add_constant(f"{kernel.name}.bias", bias)
    into = emitter.names(source.code)
    return graph.add(
        "QLinearConv",
        [source.tensor, *into, *weights, *emitter.names(out), bias_name],
        [graph.fresh(f"{kernel.name}.codes")],
        emitter.weighted_name("QLinearConv"),
        domain=CONTRIB,
        channels_last=1,
        kernel_shape=[kernel.weight.shape[2]],
        pads=list(kernel.pads),
        dilations=[kernel.dilation],
        strides=[kernel.stride],
    )


def spare_channels(channels: int) -> int:
    """Return the number of zero channels to add: fast kernels make sixteen, then fours."""
    return max(_FEWEST - channels, -channels % _UNIT)


def spare_columns(weight: Array, spare: int) -> Array:
    """Return a weight (C_out, C_in, K) that ignores spare input channels."""
    return np.pad(weight, ((0, 0), (0, spare), (0, 0)))


def _rows(values: Array, spare: int) -> Array:
    """Return values with zeros behind the first axis."""
    return np.pad(values, [(0, spare), *[(0, 0)] * (values.ndim - 1)])


def _bias(emitter: Emitter, node: onnx.NodeProto, channels: int) -> Array:
    if len(node.input) > 2:
        return emitter.graph.value(node.input[2])
    return np.zeros(channels, np.float32)
