"""Convolutions on codes, channels last: no layout change stands between two of them."""

from dataclasses import dataclass, replace

import numpy as np
import onnx

from tts_compress.numerics.affine import Affine
from tts_compress.numerics.weights import round_bias, round_weight
from tts_compress.onnx.convolution import Convolution, read_convolution
from tts_compress.onnx.graph import Array, Graph, attribute
from tts_compress.onnx.integer.emitter import CONTRIB, Coded, Emitter

_FEWEST, _UNIT = 16, 4
"""onnxruntime's symmetric convolution wants at least 16 output channels, in multiples of four."""


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """The ordinary convolution that a convolution, transposed with stride s or not, amounts to."""

    convolution: Convolution
    """Weight (s·C_out, C_in, K/s): output channel φ·C_out + c is phase φ of channel c. The bias is
    that of one phase."""

    phases: int = 1
    """The stride s: a frame of the result is so many samples."""

    skip: int = 0
    """Samples to drop at the beginning of the result, of which s·T are kept."""


def integer_form(graph: Graph, node: onnx.NodeProto) -> IntegerForm | None:
    """Return the form in which a convolution along time can be computed in integers, if any.

    With stride s the outputs n = s·m + φ of one phase φ are an ordinary convolution of the input,
    so s·C output channels, laid out as (T, s·C) and read as (s·T, C), are the upsampled signal.
    Channels last, that reading moves no data; and the convolution has fast integer kernels, while
    a transposed one has none.

    Required: constant weights and one group; if transposed also no dilation, a kernel of whole
    strides, and paddings that make the output exactly s times as long as the input.
    """
    found = read_convolution(graph, node)
    if found is None or found.groups != 1:
        return None
    if node.op_type == "Conv":
        return IntegerForm(found)
    stride, kernel = found.stride, found.weight.shape[2]
    extra = attribute(node, "output_padding", (0,))[0] - sum(found.pads)
    if found.dilation != 1 or attribute(node, "output_shape", ()):
        return None
    if kernel % stride or kernel + extra != stride:
        return None
    size = kernel // stride
    # Tap t of phase φ is kernel position φ + s·(size - 1 - t): the newest frame meets the kernel's
    # beginning. The result starts `pads[0]` samples before the output.
    frames = found.weight.reshape(*found.weight.shape[:2], size, stride)[:, :, ::-1]
    weight = frames.transpose(3, 1, 0, 2).reshape(-1, len(found.weight), size)
    # Zeros on either side of the input: the result has T + size - 1 frames.
    plain = Convolution(weight=weight, bias=found.bias, pads=(size - 1, size - 1))
    return IntegerForm(plain, phases=stride, skip=found.pads[0])


def convolve(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit a Conv, or a ConvTranspose as a convolution into phases, on the codes of its input."""
    graph, stem = emitter.graph, node.output[0]
    form = integer_form(graph, node)
    assert form is not None
    plain, channels = form.convolution, len(form.convolution.bias)
    spare = spare_channels(channels)
    rows = plain.weight.reshape(form.phases, channels, *plain.weight.shape[1:])
    wide = np.pad(rows, ((0, 0), (0, spare), (0, 0), (0, 0)))
    plain = replace(
        plain,
        weight=wide.reshape(-1, *plain.weight.shape[1:]),
        bias=np.tile(np.pad(plain.bias, (0, spare)), form.phases),
    )
    source = emitter.codes(node.input[0])
    if node.op_type == "Conv":
        made = _emit(emitter, stem, source, plain, out)
    else:
        frames = _emit(emitter, f"{stem}.phases", source, plain, out)  # (B, T + pad, s·C)
        shape = graph.add_constant(f"{stem}.samples_shape", np.array([0, -1, channels + spare]))
        samples = graph.make("Reshape", [frames, shape], f"{stem}.samples")
        made = graph.fresh(f"{stem}.codes")
        # Keep the s·T samples that the transposed convolution would have made.
        tail = plain.pads[0] * form.phases - form.skip
        bounds = {"begin": form.skip, "end": -tail if tail else np.iinfo(np.int64).max, "axis": 1}
        cut = [
            graph.add_constant(f"{made}.cut_{name}", np.array([bound], np.int64))
            for name, bound in bounds.items()
        ]
        graph.add("Slice", [samples, *cut], [made])
    emitter.define(stem, Coded(made, out, spare))


def _emit(emitter: Emitter, name: str, source: Coded, plain: Convolution, out: Affine) -> str:
    graph = emitter.graph
    columns = spare_columns(plain.weight, source.spare)
    codes, scales = round_weight(columns, 0, multiplied=True)
    weights = [
        graph.add_constant(f"{name}.weight", codes),
        graph.add_constant(f"{name}.weight_scale", scales),
        graph.add_constant(f"{name}.weight_zero", np.zeros(len(codes), np.int8)),
    ]
    # The accumulator counts in units of input scale times weight scale.
    bias = round_bias(plain.bias, source.code.scale * scales.astype(np.float64))
    bias_name = graph.add_constant(f"{name}.bias", bias)
    into = emitter.names(source.code)
    return graph.make(
        "QLinearConv",
        [source.tensor, *into, *weights, *emitter.names(out), bias_name],
        f"{name}.codes",
        emitter.weighted_name("QLinearConv"),
        domain=CONTRIB,
        channels_last=1,
        kernel_shape=[plain.weight.shape[2]],
        pads=list(plain.pads),
        dilations=[plain.dilation],
        strides=[plain.stride],
    )


def spare_channels(channels: int) -> int:
    """Return the number of zero channels to add: fast kernels make sixteen, then fours."""
    return max(_FEWEST - channels, -channels % _UNIT)


def spare_columns(weight: Array, spare: int) -> Array:
    """Return a weight (C_out, C_in, K) that ignores spare input channels."""
    return np.pad(weight, ((0, 0), (0, spare), (0, 0)))
