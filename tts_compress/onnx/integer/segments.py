"""Codes of a tensor that is loud and silent by turns: ranges by channel, a gain for each segment.

Sound swings by 50 to 100 dB between speech and silence, more than eight bits hold. A tensor is cut
into segments of samples; the gain of one is the largest share of its range that any channel uses in
it, and codes are those of the numbers divided by it (block floating point, along time). What a
convolution multiplies must have one gain: each segment comes with the neighbours' samples that its
results need, under its own gain.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx.helper import make_empty_tensor_value_info

from tts_compress.numerics.affine import ChannelCodes
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer.convolutions import IntegerForm, integer_form

_SAMPLES = 128
"""Samples of a segment, unless a result needs more of either neighbour."""

_SILENCE = 1e-5
"""The smallest gain, -100 dB: what is below counts as silence."""

_SAME_LENGTH = {"Add", "Div", "LeakyRelu", "Mul", "Relu", "Sub", "Tanh"}


@dataclass(frozen=True, slots=True)
class Cut:
    """Segments of a tensor (B, C, T), such that all convolutions that read it can use them."""

    left: int
    """Samples of the segment before that come with one, at most as many as it has."""

    right: int
    """Samples of the segment behind."""

    more: int = 0
    """Samples by which results are longer than the tensor."""

    multiple: int = 1
    """Divisor of T."""

    @property
    def length(self) -> int:
        """Samples of a segment."""
        return max(_SAMPLES, 1 << (max(self.left, self.right, 1) - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Segments:
    """Names of the tensors that hold a tensor's segments."""

    codes: str
    """(B, C, N, left + L + right) in uint8."""

    gains: str
    """(B, 1, N), positive."""


def find_cuts(graph: Graph, outputs: Iterable[str]) -> dict[str, Cut]:
    """Return the segments of all tensors that convolutions with these outputs read."""
    cuts: dict[str, Cut] = {}
    wanted = set(outputs)
    for node in graph.nodes:
        if node.output[0] in wanted:
            form = integer_form(graph, node)
            assert form is not None
            plain, span = form.convolution, _span(form)
            other = cuts.get(node.input[0], Cut(0, 0))
            cuts[node.input[0]] = Cut(
                max(other.left, plain.pads[0]),
                max(other.right, span - plain.pads[0]),
                max(other.more, sum(plain.pads) - span),
                _divisor(graph, node.input[0]),
            )
    return cuts


def result_begin(form: IntegerForm, cut: Cut) -> tuple[int, int]:
    """Return where in a segment of codes that begins which results need, and its end."""
    begin = cut.left - form.convolution.pads[0]
    return begin, begin + cut.length + _span(form)


def per_gain(output: str) -> str:
    """Return the name of a convolution's result, without its bias, in shares of segments' gains."""
    return f"{output}.per_gain"


def observe_per_gain(
    model: onnx.ModelProto, outputs: Collection[str], codes: Mapping[str, ChannelCodes]
) -> onnx.ModelProto:
    """Return a copy of an FP32 graph that also makes what `per_gain` names, each (B, C, T)."""
    copy = copy_model(model)
    copy.graph.output.extend(make_empty_tensor_value_info(per_gain(output)) for output in outputs)
    graph, wanted = Graph(copy), set(outputs)
    cuts = find_cuts(graph, outputs)
    for node in [node for node in graph.nodes if node.output[0] in wanted]:
        source, stem = node.input[0], per_gain(node.output[0])
        form, cut = integer_form(graph, node), cuts[source]
        assert form is not None
        bias = graph.add_constant(f"{stem}.bias", form.convolution.bias[:, None])
        plain = graph.make("Sub", [node.output[0], bias], f"{stem}.plain")
        gains = _gains(graph, source, cut, codes[source], stem)[1]
        samples, channels = cut.length * form.phases, len(form.convolution.bias)
        ends = graph.make("Mul", [_time(graph, gains), _ints(graph, samples)], f"{stem}.ends")
        rest = graph.make("Sub", [ends, _time(graph, plain)], f"{stem}.rest")
        rest = graph.make("Sub", [rest, _ints(graph, form.skip)], f"{stem}.behind")
        edges = [_ints(graph, 0, 0, form.skip, 0, 0), rest]
        amounts = graph.make("Concat", edges, f"{stem}.pads", axis=0)
        padded = graph.make("Pad", [plain, amounts], f"{stem}.padded")
        shape = _ints(graph, 0, channels, -1, samples)
        segments = graph.make("Reshape", [padded, shape], f"{stem}.segments")
        column = graph.make("Reshape", [gains, _ints(graph, 0, 1, -1, 1)], f"{stem}.gains")
        share = graph.make("Div", [segments, column], f"{stem}.share")
        graph.insert("Reshape", [share, _ints(graph, 0, channels, -1)], stem)
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
    scales, zeros, shape = rows(graph, gains, codes, f"{stem}.rows")
    rounded = []
    for size, part in parts:
        row = graph.make("Reshape", [part, _ints(graph, 1, -1, size)], f"{part}.row")
        row = graph.make("QuantizeLinear", [row, scales, zeros], f"{part}.rounded", axis=1)
        whole = graph.make("Concat", [shape, _ints(graph, size)], f"{part}.shape", axis=0)
        rounded.append(graph.make("Reshape", [row, whole], f"{part}.codes"))
    main, *beside = rounded
    left = right = None
    if beside:
        left = _cut(graph, beside[0], 0, cut.left, 3)
        right = _cut(graph, beside[0], cut.left, cut.left + cut.right, 3)
    beside = [part for part in (left, main, right) if part]
    return Segments(graph.make("Concat", beside, f"{stem}.segments", axis=3), gains)


def rows(graph: Graph, gains: str, codes: ChannelCodes, stem: str) -> tuple[str, str, str]:
    """Return scales and zeros of all segments of all channels, (B·C·N,), and the shape (B, C, N).

    As the second axis they have fast kernels.
    """
    channels = graph.add_constant(f"{stem}.scales", codes.scales[None, :, None])
    every = graph.make("Mul", [gains, channels], f"{stem}.every")
    shape = graph.make("Shape", [every], f"{stem}.shape")
    column = graph.add_constant(f"{stem}.zeros", codes.zeros[None, :, None])
    zeros = graph.make("Expand", [column, shape], f"{stem}.every_zero")
    flat = [
        graph.make("Reshape", [tensor, _ints(graph, -1)], f"{stem}.row")
        for tensor in (every, zeros)
    ]
    return flat[0], flat[1], shape


def join(graph: Graph, layer: tuple[IntegerForm, str], cut: Cut, source: str, result: str) -> str:
    """Return a result in segments (B, C, N, L) as one (B, C, T), without what is padding.

    Args:
        graph: Where this is emitted.
        layer: The convolution, and the stem of names.
        cut: The segments of what it read.
        source: That tensor.
        result: The segments.
    """
    (form, stem), channels = layer, len(layer[0].convolution.bias)
    joined = graph.make("Reshape", [result, _ints(graph, 0, channels, -1)], f"{stem}.joined")
    if not (_more(form) or cut.more or form.skip or cut.multiple % cut.length):
        return joined
    begin = graph.share_constant(f"tts_compress.at.{form.skip}", np.array([form.skip]))
    frames = graph.make("Mul", [_time(graph, source), _ints(graph, form.phases)], f"{stem}.frames")
    end = _more(form) if form.phases == 1 else form.skip
    if end:
        frames = graph.make("Add", [frames, _ints(graph, end)], f"{stem}.end")
    return graph.make("Slice", [joined, begin, frames, _ints(graph, 2)], f"{stem}.kept")


def _gains(
    graph: Graph, source: str, cut: Cut, codes: ChannelCodes, stem: str
) -> tuple[list[tuple[int, str]], str]:
    """Return the real numbers of segments, and what comes with them, by widths; and the gains."""
    length, padded = cut.length, source
    if cut.more or cut.multiple % length:
        short = graph.make("Neg", [_time(graph, source)], f"{stem}.short")
        if cut.more:
            short = graph.make("Sub", [short, _ints(graph, cut.more)], f"{stem}.shorter")
        pad = graph.make("Mod", [short, _ints(graph, length)], f"{stem}.pad")
        if cut.more:
            pad = graph.make("Add", [pad, _ints(graph, cut.more)], f"{stem}.wider")
        pads = graph.make("Concat", [_ints(graph, 0, 0, 0, 0, 0), pad], f"{stem}.pads", axis=0)
        padded = graph.make("Pad", [source, pads], f"{stem}.padded")
    shape = _ints(graph, 0, len(codes.zeros), -1, length)
    parts = [(length, graph.make("Reshape", [padded, shape], f"{stem}.real"))]
    sides = [
        graph.make("Pad", [parts[0][1], _ints(graph, *amounts)], f"{stem}.side")
        for width, amounts in (
            (cut.left, (0, 0, 1, cut.left - length, 0, 0, -1, 0)),
            (cut.right, (0, 0, -1, 0, 0, 0, 1, cut.right - length)),
        )
        if width
    ]
    if sides:
        beside = graph.make("Concat", sides, f"{stem}.beside", axis=3)
        parts.append((cut.left + cut.right, beside))
    peaks = []
    scales, zeros = codes.scales.astype(np.float64), codes.zeros.astype(np.float64)
    with np.errstate(divide="ignore"):
        limits = {"ReduceMax": 1 / (scales * (255 - zeros)), "ReduceMin": -1 / (scales * zeros)}
    for reduce, limit in limits.items():
        inverse = np.where(np.isfinite(limit), limit, 0.0)[None, :, None].astype(np.float32)
        bound = graph.add_constant(f"{stem}.{reduce}", inverse)
        for _, part in parts:
            peak = _reduce(graph, reduce, part, 3, f"{stem}.peak")
            peaks.append(graph.make("Mul", [peak, bound], f"{stem}.share"))
    most = graph.make("Max", peaks, f"{stem}.shares")
    loudest = _reduce(graph, "ReduceMax", most, 1, f"{stem}.loudest", keepdims=1)
    floor = graph.share_constant("tts_compress.silence", np.array(_SILENCE, np.float32))
    return parts, graph.make("Max", [loudest, floor], f"{stem}.gains")


def _reduce(
    graph: Graph, operator: str, tensor: str, axis: int, stem: str, keepdims: int = 0
) -> str:
    if graph.opset() < 18:
        return graph.make(operator, [tensor], stem, axes=[axis], keepdims=keepdims)
    return graph.make(operator, [tensor, _ints(graph, axis)], stem, keepdims=keepdims)


def _cut(graph: Graph, tensor: str, begin: int, end: int, axis: int) -> str | None:
    if begin == end:
        return None
    bounds = [_ints(graph, value) for value in (begin, end, axis)]
    return graph.make("Slice", [tensor, *bounds], f"{tensor}.cut")


def _time(graph: Graph, tensor: str) -> str:
    """Return the length of a tensor (B, C, T), (1,)."""
    shape = graph.make("Shape", [tensor], f"{tensor}.shape")
    bounds = [_ints(graph, value) for value in (2, 3, 0)]
    return graph.make("Slice", [shape, *bounds], f"{tensor}.time")


def _ints(graph: Graph, *values: int) -> str:
    name = "tts_compress.ints." + ".".join(map(str, values))
    return graph.share_constant(name, np.array(values, np.int64))


def _span(form: IntegerForm) -> int:
    """Return the samples besides its own that a result reads."""
    return int(form.convolution.dilation * (form.convolution.weight.shape[2] - 1))


def _more(form: IntegerForm) -> int:
    """Return by how much a result is longer than what it is of."""
    return sum(form.convolution.pads) - _span(form)


def _divisor(graph: Graph, tensor: str) -> int:
    """Return a number that divides the length of a tensor, as far as upsampling tells."""
    divisor, node = 1, graph.producer(tensor)
    while node is not None:
        form = integer_form(graph, node) if "Conv" in node.op_type else None
        is_plain = form is not None and form.convolution.stride == 1
        if form is not None and is_plain and (form.phases > 1 or not _more(form)):
            divisor *= form.phases
        elif node.op_type not in _SAME_LENGTH:
            break
        sources = [name for name in node.input if graph.constant(name) is None]
        node = graph.producer(sources[0]) if sources else None
    return divisor
