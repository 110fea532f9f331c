"""The state of an emission, tensors that exist as 8-bit codes, and convolutions on them.

Codes are channels last: no layout change stands between two convolutions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from tts_compress.numerics.ranges import Affine
from tts_compress.numerics.weights import least_scales, round_bias
from tts_compress.onnx.graph import CONTRIB, Array, Graph
from tts_compress.onnx.modules import Convolution, read_convolution
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.weight_codes import WeightCodes, store_blocks


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor of 8-bit codes, channels last: (B, T, C) for a real tensor (B, C, T)."""

    tensor: str
    code: Affine
    spare: int = 0
    """Channels of zeros behind the real ones, which fill the kernels' registers."""


class Emitter:
    """Writes integer nodes beside the real ones and keeps track of both forms of a tensor."""

    def __init__(
        self, graph: Graph, ranges: Mapping[str, tuple[float, float]], weights: WeightCodes
    ) -> None:
        self.graph = graph
        self.weights = weights
        self.scope = ""
        """Name of the operator that is being emitted, a prefix of its integer operators' names."""

        self.ranges = dict(ranges)
        self._coded: dict[str, Coded] = {}
        self._scales: dict[float, int] = {}

    def code_of(self, tensor: str) -> Affine:
        """Return the code that covers a real tensor's observed range."""
        return Affine.spanning(*self.ranges[tensor])

    def share(self, tensors: Sequence[str]) -> None:
        """Give tensors that will stand side by side one code, so that joining them is a copy."""
        if all(tensor in self.ranges for tensor in tensors):
            lows, highs = zip(*(self.ranges[tensor] for tensor in tensors), strict=True)
            self.ranges.update(dict.fromkeys(tensors, (min(lows), max(highs))))

    def codes(self, tensor: str) -> Coded:
        """Return a real tensor's codes, quantizing it here if it has none yet."""
        if tensor not in self._coded:
            code = self.code_of(tensor)
            inputs = [tensor, *self.names(code)]
            flat = self.graph.make("QuantizeLinear", inputs, f"{tensor}.codes_first")
            # (B, C, T) -> (B, T, C)
            turned = self.graph.make("Transpose", [flat], f"{tensor}.codes", perm=[0, 2, 1])
            self._coded[tensor] = Coded(turned, code)
        return self._coded[tensor]

    def define(self, tensor: str, coded: Coded) -> None:
        """Record the codes of a real tensor that is no longer computed."""
        self._coded[tensor] = coded

    def restore(self, tensor: str, factors: Array | None = None) -> None:
        """Write the real tensor again, from its codes, for readers that stayed real.

        Args:
            tensor: The tensor (B, C, T).
            factors: Factors of its channels, (C,); applying them costs nothing.
        """
        coded, graph = self.narrow(self._coded[tensor]), self.graph
        # (B, T, C) -> (B, C, T)
        turned = graph.make("Transpose", [coded.tensor], f"{tensor}.first", perm=[0, 2, 1])
        if factors is None:
            scale, zero = self.names(coded.code)
        else:
            scales = (coded.code.scale * factors.astype(np.float64)).astype(np.float32)
            zeros = np.full(len(scales), coded.code.zero, np.uint8)
            scale, zero = graph.add_constants(tensor, scales=scales, zeros=zeros)
        # Scales of several channels are those of the second axis, unless it says otherwise.
        graph.add("DequantizeLinear", [turned, scale, zero], [tensor])

    def narrow(self, coded: Coded) -> Coded:
        """Return codes without spare channels."""
        if not coded.spare:
            return coded
        inputs = [coded.tensor, *self.graph.add_bounds("channels", 0, -coded.spare, 2)]
        return Coded(self.graph.make("Slice", inputs, f"{coded.tensor}.narrow"), coded.code)

    def weighted_name(self, operator: str) -> str:
        """Return a new name for an operator with weights; it still tells the module."""
        return self.graph.fresh(f"{self.scope}/{operator}")

    def names(self, code: Affine) -> tuple[str, str]:
        """Return initializers that hold a scale and a zero point."""
        return self.scale(code.scale), self.zero(code.zero)

    def scale(self, value: float) -> str:
        """Return an initializer that holds a float32 scalar."""
        name = f"scale_{self._scales.setdefault(value, len(self._scales))}"
        return self.graph.share_constant(name, np.array(value, np.float32))

    def zero(self, value: int) -> str:
        """Return an initializer that holds a code."""
        return self.graph.share_constant(f"zero_{value}", np.array(value, np.uint8))


_FEWEST, _UNIT = 16, 4
"""onnxruntime's symmetric convolution wants at least 16 output channels, in multiples of four."""


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """A convolution, perhaps transposed with stride s, written as an ordinary one."""

    convolution: Convolution
    """Weight (s·C_out, C_in, K/s): output channel φ·C_out + c is phase φ of channel c. The bias is
    that of one phase."""

    phases: int = 1
    """The stride s: a frame of the result holds s samples."""

    skip: int = 0
    """Samples to drop at the beginning of the result; the next s·T are kept."""


def whole_kernel(weight: Array, phases: int) -> Array:
    """Return the weight (C_out, C_in, K) of a transposed convolution whose phases are given."""
    size = weight.shape[2]
    frames = weight.reshape(phases, -1, weight.shape[1], size).transpose(1, 2, 3, 0)[:, :, ::-1]
    return frames.reshape(-1, weight.shape[1], size * phases)


def integer_form(graph: Graph, node: onnx.NodeProto) -> IntegerForm | None:
    """Return a convolution along time as integers can compute it, or None if they cannot.

    With stride s the outputs n = s·m + φ of one phase φ are an ordinary convolution of the input,
    so s·C output channels, laid out as (T, s·C) and read as (s·T, C), are the upsampled signal.
    Channels last, that reading moves no data; and the convolution has fast integer kernels, while
    a transposed one has none.

    Required: constant weights and one group; if transposed also no dilation, a kernel of whole
    strides, and paddings that make the output exactly s times as long as the input.
    """
    whole = read_convolution(graph, node)
    if whole is None or whole.groups != 1:
        return None
    if node.op_type == "Conv":
        return IntegerForm(whole)
    stride, kernel = whole.stride, whole.weight.shape[2]
    extra = attribute(node, "output_padding", (0,))[0] - sum(whole.pads)
    if whole.dilation != 1 or attribute(node, "output_shape", ()):
        return None
    if kernel % stride or kernel + extra != stride:
        return None
    size = kernel // stride
    # Tap t of phase φ is kernel position φ + s·(size - 1 - t): the newest frame meets the kernel's
    # beginning. The result starts `pads[0]` samples before the output.
    frames = whole.weight.reshape(*whole.weight.shape[:2], size, stride)[:, :, ::-1]
    weight = frames.transpose(3, 1, 0, 2).reshape(-1, len(whole.weight), size)
    # Zeros on either side of the input: the result has T + size - 1 frames.
    plain = Convolution(weight=weight, bias=whole.bias, pads=(size - 1, size - 1))
    return IntegerForm(plain, phases=stride, skip=whole.pads[0])


def convolve(emitter: Emitter, node: onnx.NodeProto, out: Affine) -> None:
    """Emit a Conv, or a ConvTranspose as a convolution into phases, on the codes of its input."""
    graph, stem = emitter.graph, node.output[0]
    form = integer_form(graph, node)
    assert form is not None
    plain, channels = form.convolution, len(form.convolution.bias)
    spare = max(_FEWEST - channels, -channels % _UNIT)
    source = emitter.codes(node.input[0])
    name = stem if node.op_type == "Conv" else f"{stem}.phases"
    least = least_scales(np.tile(plain.bias, form.phases), source.code.scale)
    kernel = _kernel(emitter, stem, name, form, (spare, source.spare), least)
    plain = replace(plain, bias=np.tile(np.pad(plain.bias, (0, spare)), form.phases))
    codes = _emit(emitter, name, source, (plain, kernel), out)
    if node.op_type == "ConvTranspose":  # codes are (B, T + pad, s·C)
        shape = graph.add_constant(f"{stem}.samples_shape", np.array([0, -1, channels + spare]))
        samples = graph.make("Reshape", [codes, shape], f"{stem}.samples")
        codes = graph.fresh(f"{stem}.codes")
        # Keep the s·T samples that the transposed convolution would have made.
        end = form.skip - plain.pads[0] * form.phases or np.iinfo(np.int64).max
        bounds = {"cut_begin": form.skip, "cut_end": end, "cut_axis": 1}
        vectors = {name: np.array([bound], np.int64) for name, bound in bounds.items()}
        graph.add("Slice", [samples, *graph.add_constants(codes, **vectors)], [codes])
    emitter.define(stem, Coded(codes, out, spare))


def _kernel(
    emitter: Emitter,
    stem: str,
    name: str,
    form: IntegerForm,
    spare: tuple[int, int],
    least: Array,
) -> tuple[str, Array]:
    """Store a weight, or its packed four bits, with spare outputs in each phase, and inputs.

    Returns:
        The tensor of its codes (outputs, inputs, K), and its scales (outputs,).
    """
    graph, weight, name = emitter.graph, form.convolution.weight, f"{name}.weight"
    shape = (form.phases, len(form.convolution.bias), *weight.shape[1:])
    pads = ((0, 0), (0, spare[0]), (0, spare[1]), (0, 0))
    wide = (form.phases * (shape[1] + spare[0]), weight.shape[1] + spare[1], weight.shape[2])

    def padded(scales: Array) -> Array:
        return np.pad(scales.reshape(form.phases, -1), pads[:2], constant_values=1).reshape(-1)

    blocks = emitter.weights.blocks(stem, weight, least)
    if blocks is None:
        columns = spare_columns(weight, spare[1])
        codes, scales = emitter.weights.rounded(stem, columns, multiplied=True, least=least)
        codes = np.pad(codes.reshape(*shape[:2], *wide[1:]), (*pads[:2], (0, 0), (0, 0)))
        return graph.add_constant(name, codes.reshape(wide)), padded(scales)
    if not any(spare):
        return store_blocks(graph, name, blocks, wide), padded(blocks.scales)
    narrow = store_blocks(graph, name, blocks, shape)
    amounts = graph.add_constant(f"{name}.spare", np.array(pads).T.reshape(-1))
    filled = graph.make("Pad", [narrow, amounts], f"{name}.padded")
    whole = graph.add_constant(f"{name}.shape", np.array(wide))
    return graph.make("Reshape", [filled, whole], f"{name}.wide"), padded(blocks.scales)


def _emit(
    emitter: Emitter,
    name: str,
    source: Coded,
    convolution: tuple[Convolution, tuple[str, Array]],
    out: Affine,
) -> str:
    graph, (plain, (codes, scales)) = emitter.graph, convolution
    zeros = np.zeros(len(scales), np.int8)
    # The accumulator counts in units of input scale times weight scale.
    sums = round_bias(plain.bias, source.code.scale * scales.astype(np.float64))
    *weights, bias = graph.add_constants(name, weight_scale=scales, weight_zero=zeros, bias=sums)
    into, out_of = emitter.names(source.code), emitter.names(out)
    return graph.make(
        "QLinearConv",
        [source.tensor, *into, codes, *weights, *out_of, bias],
        f"{name}.codes",
        emitter.weighted_name("QLinearConv"),
        domain=CONTRIB,
        channels_last=1,
        kernel_shape=[plain.weight.shape[2]],
        pads=list(plain.pads),
        dilations=[plain.dilation],
        strides=[plain.stride],
    )


def spare_columns(weight: Array, spare: int) -> Array:
    """Return a weight (C_out, C_in, K) that ignores spare input channels."""
    return np.pad(weight, ((0, 0), (0, spare), (0, 0)))
