"""A transposed convolution that upsamples is an ordinary one with more channels, and a reshape.

With stride s the outputs n = s·m + φ of one phase φ are an ordinary convolution of the input, so
s·C output channels, laid out as (T, s·C) and read as (s·T, C), are the upsampled signal. Channels
last, that reading moves no data; and the convolution has fast integer kernels, while a transposed
one has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.onnx.graph import integer, integers, is_automatic

if TYPE_CHECKING:
    import onnx

    from tts_compress.onnx.graph import Array, Graph

__all__ = ["PhaseConvolution", "expand_upsampling", "phase_convolution"]


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

    Wanted: one spatial axis, one group, no dilation, a kernel of whole strides, and paddings that
    make the output exactly s times as long as the input.

    Args:
        node: The ConvTranspose.
        weight: Its weight, (C_in, C_out, K).
    """
    if node.op_type != "ConvTranspose" or weight.ndim != 3 or integer(node, "group", 1) != 1:
        return None
    (stride,), (extra,) = integers(node, "strides", [1]), integers(node, "output_padding", [0])
    begin, end = integers(node, "pads", [0, 0])
    kernel = weight.shape[2]
    plain = integers(node, "dilations", [1]) == (1,) and not integers(node, "output_shape")
    if is_automatic(node) or not plain:
        return None
    if kernel % stride or kernel - begin - end + extra != stride:
        return None
    taps = kernel // stride
    # Tap t of phase φ is kernel position φ + s·(taps - 1 - t): the newest frame meets the kernel's
    # beginning. The result starts `begin` samples before the output.
    frames = weight.reshape(weight.shape[0], weight.shape[1], taps, stride)[:, :, ::-1]
    phases = frames.transpose(3, 1, 0, 2).reshape(stride * weight.shape[1], weight.shape[0], taps)
    return PhaseConvolution(weight=phases, stride=stride, pad=taps - 1, skip=begin)


def expand_upsampling(graph: Graph) -> int:
    """Replace every ConvTranspose that only upsamples; return how many were replaced."""
    replaced = 0
    for node in [n for n in graph.nodes if n.op_type == "ConvTranspose"]:
        weight = graph.constant(node.input[1])
        bias = graph.constant(node.input[2]) if len(node.input) > 2 else None
        phases = None if weight is None else phase_convolution(node, weight)
        if phases is not None and (bias is not None or len(node.input) == 2):
            graph.remove(node)
            _emit(graph, node, phases, bias)
            replaced += 1
    return replaced


def _emit(graph: Graph, node: onnx.NodeProto, phases: PhaseConvolution, bias: Array | None) -> None:
    """Write Conv, the interleaving of phases, and the cut, in channels-first layout."""
    stem, channels = node.output[0], phases.weight.shape[0] // phases.stride
    inputs = [node.input[0], graph.add_constant(f"{stem}.phases", phases.weight)]
    if bias is not None:
        inputs.append(graph.add_constant(f"{stem}.phase_bias", np.tile(bias, phases.stride)))
    frames = graph.add(
        "Conv",
        inputs,
        [graph.fresh(f"{stem}.frames")],
        name=node.name,
        kernel_shape=[phases.weight.shape[2]],
        pads=[phases.pad, phases.pad],
    )  # (B, s·C, T + pad)
    split = graph.add_constant(f"{stem}.split", np.array([0, phases.stride, channels, -1]))
    joined = graph.add_constant(f"{stem}.joined", np.array([0, channels, -1]))
    parts = graph.add("Reshape", [frames, split], [graph.fresh(f"{stem}.parts")])
    turned = graph.fresh(f"{stem}.turned")
    graph.add("Transpose", [parts], [turned], perm=[0, 2, 3, 1])  # (B, C, T + pad, s)
    long = graph.add("Reshape", [turned, joined], [graph.fresh(f"{stem}.long")])
    cut_samples(graph, long, stem, phases, axis=2)


def cut_samples(
    graph: Graph, source: str, target: str, phases: PhaseConvolution, axis: int
) -> None:
    """Keep the s·T samples of the time axis that the transposed convolution would have made."""
    tail = phases.pad * phases.stride - phases.skip
    bounds = (phases.skip, -tail if tail else np.iinfo(np.int64).max, axis)
    names = ("cut_begin", "cut_end", "cut_axis")
    inputs = [
        graph.add_constant(f"{target}.{name}", np.array([bound], np.int64))
        for name, bound in zip(names, bounds, strict=True)
    ]
    graph.add("Slice", [source, *inputs], [target])
