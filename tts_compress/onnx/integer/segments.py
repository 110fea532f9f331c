"""Codes of a tensor that is loud and silent by turns: ranges by channel, a gain for each segment.

Sound swings by 50 to 100 dB between speech and silence, more than eight bits hold. A tensor is cut
into segments of samples; the gain of one is the largest share of its range that any channel uses in
it, and codes are those of the numbers divided by it (block floating point, along time). What a
convolution multiplies must have one gain: each segment comes with the neighbours' samples that its
results need, under its own gain.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx.helper import make_empty_tensor_value_info

from tts_compress.numerics.affine import LEVELS, ChannelCodes
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer.convolutions import IntegerForm, integer_form

_SAMPLES = 128
"""Samples of a segment, unless a result needs more of either neighbour."""

_SILENCE = 1e-5
"""The smallest gain, -100 dB: what is below counts as silence."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Segments of a tensor (B, C, T), such that all convolutions that read it can use them."""

    left: int = 0
    """Samples of the segment before that come with one, at most as many as it has."""

    right: int = 0
    """Samples of the segment behind."""

    more: int = 0
    """Samples by which results are longer than the tensor."""

    @property
    def length(self) -> int:
        """Samples of a segment."""
        return int(max(_SAMPLES, 1 << (max(self.left, self.right, 1) - 1).bit_length()))

    def window(self, form: IntegerForm) -> tuple[int, int]:
        """Return where in a segment that begins which results of a convolution need; its end."""
        begin = self.left - form.convolution.pads[0]
        return begin, begin + self.length + _span(form)


@dataclass(frozen=True, slots=True)
class Segments:
    """Names of the tensors that hold a tensor's segments."""

    codes: str
    """(B, C, N, left + L + right) in uint8."""

    gains: str
    """(B, 1, N), positive."""


def find_cuts(graph: Graph, outputs: Collection[str]) -> dict[str, Cut]:
    """Return the segments of all tensors that convolutions with these outputs read."""
    cuts: dict[str, Cut] = {}
    for node in graph.nodes:
        form = integer_form(graph, node) if node.output[0] in outputs else None
        if form is not None:
            cut = cuts.get(node.input[0], Cut())
            begin = form.convolution.pads[0]
            widest = max(cut.left, begin), max(cut.right, _span(form) - begin)
            cuts[node.input[0]] = Cut(*widest, max(cut.more, _more(form)))
    return cuts


def per_gain(output: str) -> str:
    """Return the name of a convolution's result, without its bias, in shares of segments' gains."""
    return f"{output}.per_gain"


def observe_per_gain(
    model: onnx.ModelProto, outputs: Collection[str], codes: Mapping[str, ChannelCodes]
) -> onnx.ModelProto:
    """Return a copy of an FP32 graph that also makes what `per_gain` names, each (B, C, T)."""
    copy = copy_model(model)
    copy.graph.output.extend(make_empty_tensor_value_info(per_gain(output)) for output in outputs)
    graph = Graph(copy)
    cuts = find_cuts(graph, outputs)
    for node in [node for node in graph.nodes if node.output[0] in outputs]:
        source, stem = node.input[0], per_gain(node.output[0])
        form, cut = integer_form(graph, node), cuts[source]
        assert form is not None
        bias = graph.add_constant(f"{stem}.bias", form.convolution.bias[:, None])
        plain = graph.make("Sub", [node.output[0], bias], f"{stem}.plain")
        _, gains = _gains(graph, source, cut, codes[source], stem)
        samples = cut.length * form.phases
        # Where upsampling drops a few samples first, those of the next segment count as this one's.
        ends = graph.make("Mul", [_time(graph, gains), _ints(graph, samples)], f"{stem}.ends")
        rest = graph.make("Sub", [ends, _time(graph, plain)], f"{stem}.rest")
        segments = _padded(graph, plain, rest, (len(form.convolution.bias), samples), stem)
        column = graph.make("Unsqueeze", [gains, _ints(graph, 3)], f"{stem}.gains")
        share = graph.make("Div", [segments, column], f"{stem}.share")
        graph.insert("Reshape", [share, _ints(graph, 0, len(form.convolution.bias), -1)], stem)
    return graph.finish()


def round_segments(graph: Graph, source: str, cut: Cut, codes: ChannelCodes, stem: str) -> Segments:
    """Return the codes and gains of a tensor's segments.

    Args:
        graph: Where this is emitted.
        source: The tensor.
        cut: Its segments.
        codes: Those of its channels at a gain of 1.
        stem: What names of operators begin with.
    """
    parts, gains = _gains(graph, source, cut, codes, stem)
    ranges = by_segment(graph, gains, codes, stem)
    main, *beside = (
        in_rows(graph, "QuantizeLinear", part, size, ranges, f"{stem}.rounded")
        for size, part in parts
    )
    whole = [main]
    if beside and cut.left:
        whole.insert(0, _sliced(graph, beside[0], 0, cut.left))
    if beside and cut.right:
        whole.append(_sliced(graph, beside[0], cut.left, cut.left + cut.right))
    return Segments(graph.make("Concat", whole, f"{stem}.segments", axis=3), gains)


def by_segment(graph: Graph, gains: str, codes: ChannelCodes, stem: str) -> tuple[str, str]:
    """Return scales and zeros of each channel's segments, (B·C·N,)."""
    scales = graph.add_constant(f"{stem}.scales", codes.scales[None, :, None])
    zeros = graph.add_constant(f"{stem}.zeros", codes.zeros[None, :, None])
    every = graph.make("Mul", [gains, scales], f"{stem}.every_scale")
    shape = graph.make("Shape", [every], f"{stem}.shape")
    both = every, graph.make("Expand", [zeros, shape], f"{stem}.every_zero")
    first, second = (graph.make("Reshape", [v, _ints(graph, -1)], f"{stem}.row") for v in both)
    return first, second


def in_rows(
    graph: Graph, operator: str, tensor: str, size: int, ranges: tuple[str, str], stem: str
) -> str:
    """Quantize or dequantize segments (B, C, N, size), along the second axis, which is fast."""
    row = graph.make("Reshape", [tensor, _ints(graph, 1, -1, size)], f"{stem}.row")
    made = graph.make(operator, [row, *ranges], stem, axis=1)
    shape = graph.make("Shape", [tensor], f"{stem}.shape")
    return graph.make("Reshape", [made, shape], f"{stem}.whole")


def join(graph: Graph, form: IntegerForm, source: str, result: str, stem: str) -> str:
    """Return a convolution's result in segments (B, C, N, L) as one (B, C, T)."""
    channels = len(form.convolution.bias)
    joined = graph.make("Reshape", [result, _ints(graph, 0, channels, -1)], f"{stem}.joined")
    frames = graph.make("Mul", [_time(graph, source), _ints(graph, form.phases)], f"{stem}.frames")
    more = _more(form) if form.phases == 1 else form.skip
    end = graph.make("Add", [frames, _ints(graph, more)], f"{stem}.end")
    return graph.make("Slice", [joined, _ints(graph, form.skip), end, _ints(graph, 2)], stem)


def _gains(
    graph: Graph, source: str, cut: Cut, codes: ChannelCodes, stem: str
) -> tuple[list[tuple[int, str]], str]:
    """Return the real numbers of segments, and what comes with them, by widths; and the gains."""
    length = cut.length
    total = graph.make("Add", [_time(graph, source), _ints(graph, cut.more)], f"{stem}.total")
    short = graph.make("Neg", [total], f"{stem}.short")
    rest = graph.make("Mod", [short, _ints(graph, length)], f"{stem}.rest")
    rest = graph.make("Add", [rest, _ints(graph, cut.more)], f"{stem}.pad")
    real = _padded(graph, source, rest, (len(codes.zeros), length), stem)
    beside = [
        graph.make("Pad", [real, _ints(graph, *amounts)], f"{stem}.side")
        for width, amounts in (
            (cut.left, (0, 0, 1, cut.left - length, 0, 0, -1, 0)),
            (cut.right, (0, 0, -1, 0, 0, 0, 1, cut.right - length)),
        )
        if width
    ]
    parts = [(length, real)]
    if beside:
        both = graph.make("Concat", beside, f"{stem}.beside", axis=3)
        parts.append((cut.left + cut.right, both))
    zeros, shares = codes.zeros.astype(np.float64), []
    for reduce, most in (("ReduceMax", LEVELS - zeros), ("ReduceMin", -zeros)):
        limit = np.divide(1, most * codes.scales, out=np.zeros_like(most), where=most != 0)
        limits = graph.add_constant(f"{stem}.limits", limit[None, :, None].astype(np.float32))
        for _, part in parts:
            peak = _reduced(graph, reduce, part, 3, f"{stem}.peak", keepdims=0)
            shares.append(graph.make("Mul", [peak, limits], f"{stem}.share"))
    share = graph.make("Max", shares, f"{stem}.shares")
    loudest = _reduced(graph, "ReduceMax", share, 1, f"{stem}.loudest", keepdims=1)
    floor = graph.share_constant("tts_compress.silence", np.array(_SILENCE, np.float32))
    return parts, graph.make("Max", [loudest, floor], f"{stem}.gains")


def _padded(graph: Graph, tensor: str, rest: str, shape: tuple[int, int], stem: str) -> str:
    """Return a tensor with so many zeros behind in segments, (B, *shape) with N in the middle."""
    pads = graph.make("Concat", [_ints(graph, 0, 0, 0, 0, 0), rest], f"{stem}.pads", axis=0)
    padded = graph.make("Pad", [tensor, pads], f"{stem}.padded")
    whole = _ints(graph, 0, shape[0], -1, shape[1])
    return graph.make("Reshape", [padded, whole], f"{stem}.real")


def _reduced(graph: Graph, operator: str, tensor: str, axis: int, stem: str, keepdims: int) -> str:
    if graph.opset() < 18:
        return graph.make(operator, [tensor], stem, axes=[axis], keepdims=keepdims)
    return graph.make(operator, [tensor, _ints(graph, axis)], stem, keepdims=keepdims)


def _sliced(graph: Graph, tensor: str, begin: int, end: int) -> str:
    bounds = [_ints(graph, value) for value in (begin, end, 3)]
    return graph.make("Slice", [tensor, *bounds], f"{tensor}.sliced")


def _time(graph: Graph, tensor: str) -> str:
    """Return the length of a tensor (B, C, T), (1,)."""
    shape = graph.make("Shape", [tensor], f"{tensor}.shape")
    return graph.make("Gather", [shape, _ints(graph, 2)], f"{tensor}.time")


def _ints(graph: Graph, *values: int) -> str:
    name = "tts_compress.ints." + ".".join(map(str, values))
    return graph.share_constant(name, np.array(values, np.int64))


def _span(form: IntegerForm) -> int:
    """Return the samples besides its own that a result reads."""
    return int(form.convolution.dilation * (form.convolution.weight.shape[2] - 1))


def _more(form: IntegerForm) -> int:
    """Return by how much a result is longer than what it is of."""
    return sum(form.convolution.pads) - _span(form)
