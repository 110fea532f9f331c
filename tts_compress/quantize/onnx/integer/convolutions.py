"""Convolutions on codes, channels last: no layout change stands between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.quantize.onnx.integer.affine import quantize_bias, quantize_channels
from tts_compress.quantize.onnx.integer.emitter import CONTRIB, Coded
from tts_compress.quantize.onnx.rewrite.graph import integer, integers, is_automatic
from tts_compress.quantize.onnx.rewrite.upsample import cut_samples, phase_convolution

if TYPE_CHECKING:
    import onnx

    from tts_compress.quantize.onnx.integer.affine import Affine
    from tts_compress.quantize.onnx.integer.emitter import Emitter
    from tts_compress.quantize.onnx.rewrite.graph import Array, Graph

__all__ = ["convolve", "is_convolution", "upsample"]


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


def is_convolution(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node is a convolution along time that has an integer form here."""
    weight = graph.constant(node.input[1]) if len(node.input) > 1 else None
    if weight is None or weight.ndim != 3 or weight.dtype != np.float32:
        return False
    if len(node.input) > 2 and graph.constant(node.input[2]) is None:
        return False
    if node.op_type == "ConvTranspose":
        return phase_convolution(node, weight) is not None
    return node.op_type == "Conv" and not is_automatic(node) and integer(node, "group", 1) == 1


def convolve(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit a Conv on the codes of its input."""
    weight = _constant(emitter, node, 1)
    begin, end = integers(node, "pads", [0, 0])
    kernel = Kernel(
        name=node.output[0],
        weight=weight,
        bias=_bias(emitter, node, weight.shape[0]),
        pads=(begin, end),
        dilation=integers(node, "dilations", [1])[0],
        stride=integers(node, "strides", [1])[0],
    )
    source = emitter.codes(node.input[0])
    made = _emit(emitter, source, kernel, out)
    emitter.define(node.output[0], Coded(made, out))


def upsample(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit a ConvTranspose as a convolution into phases, which channels last are samples."""
    weight = _constant(emitter, node, 1)
    phases = phase_convolution(node, weight)
    assert phases is not None
    graph, stem, channels = emitter.graph, node.output[0], weight.shape[1]
    kernel = Kernel(
        name=f"{stem}.phases",
        weight=phases.weight,
        bias=np.tile(_bias(emitter, node, channels), phases.stride),
        pads=(phases.pad, phases.pad),
    )
    source = emitter.codes(node.input[0])
    frames = _emit(emitter, source, kernel, out)  # (B, T + pad, s·C)
    shape = graph.add_constant(f"{stem}.samples_shape", np.array([0, -1, channels]))
    samples = graph.add("Reshape", [frames, shape], [graph.fresh(f"{stem}.samples")])
    made = graph.fresh(f"{stem}.codes")
    cut_samples(graph, samples, made, phases, axis=1)
    emitter.define(stem, Coded(made, out))


def _emit(emitter: Emitter, source: Coded, kernel: Kernel, out: Affine) -> str:
    graph = emitter.graph
    codes, scales = quantize_channels(kernel.weight, emitter.plan.weight_limit)
    weights = [
        graph.add_constant(f"{kernel.name}.weight", codes),
        graph.add_constant(f"{kernel.name}.weight_scale", scales),
        graph.add_constant(f"{kernel.name}.weight_zero", np.zeros(len(codes), np.int8)),
    ]
    # The accumulator counts in units of input scale times weight scale.
    bias = quantize_bias(kernel.bias, source.code.scale * scales.astype(np.float64))
    bias_name = graph.add_constant(f"{kernel.name}.bias", bias)
    into = emitter.names(source.code)
    return graph.add(
        "QLinearConv",
        [source.tensor, *into, *weights, *emitter.names(out), bias_name],
        [graph.fresh(f"{kernel.name}.codes")],
        domain=CONTRIB,
        channels_last=1,
        kernel_shape=[kernel.weight.shape[2]],
        pads=list(kernel.pads),
        dilations=[kernel.dilation],
        strides=[kernel.stride],
    )


def _constant(emitter: Emitter, node: onnx.NodeProto, position: int) -> Array:
    found = emitter.graph.constant(node.input[position])
    assert found is not None
    return found


def _bias(emitter: Emitter, node: onnx.NodeProto, channels: int) -> Array:
    if len(node.input) > 2:
        return _constant(emitter, node, 2)
    return np.zeros(channels, np.float32)
