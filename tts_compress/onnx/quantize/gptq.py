"""Weights of a graph chosen by GPTQ on what its operators read in calibration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import ChannelCodes
from tts_compress.numerics.weights import (
    CODE_LIMIT,
    HIGHEST,
    LOWEST,
    PAIR_LIMIT,
    REMAINDERS,
    Blocks,
    gptq,
    largest_code,
    round_blocks,
    round_weight,
    usable_scales,
)
from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.integer.emitter import integer_form, whole_kernel
from tts_compress.onnx.modules import Convolution
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.quantize.collect import collect_windows
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.rewrite.normalization import known_shapes
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.weight_codes import Chosen, WholeCodes
from tts_compress.recipes.formats import BY_CHANNEL, CALIBRATED, Activations, Algorithm, Weights

_CALLS, _FRAMES = 16, 4_096
"""Calls that moments are taken of, and frames of each. Where a frame is a sample, 384 of them are
17 ms: an HiFi-GAN V2 vocoder in `int8` then has an OVR of 3.12, with these 3.17 (FP32 3.21, weights
rounded to nearest 3.17). Weights alone of a small voice (hfc), in distortion: 0.60 rounded to
nearest, 0.39 by 384 frames and by all."""

_ALONG_TIME = frozenset({"Conv", "ConvTranspose"})

_MOST_INPUTS = 3_072
"""Inputs of an output beyond which eight bits are rounded to nearest: moments would take 75 MB."""


@dataclass(frozen=True, slots=True)
class _GptqLayer:
    """An operator whose output is a product of the neighbourhoods of frames with a matrix."""

    decision: Decision
    source: str
    """The tensor it reads: (B, C, T) of a convolution, else (..., T, C)."""

    weight: Array
    """Outputs first: (C_out, C_in, K) of a convolution, else (C_out, C_in, 1)."""

    convolution: Convolution | None = None
    phases: int = 1
    """Frames that a transposed convolution, seen as an ordinary one, makes of one."""

    has_bias: bool = False
    """True if it has a bias, which then keeps the mean of its output."""

    steps: Array | None = None
    """Divisors of the channels it reads and factors of its weight, (C_in,); None for 1."""

    @property
    def lags(self) -> tuple[int, ...]:
        """Frames between the first and each of the taps."""
        dilation = 1 if self.convolution is None else self.convolution.dilation
        return tuple(dilation * tap for tap in range(self.weight.shape[2]))

    @property
    def rows(self) -> Array:
        """The weight (C_out, K · C_in) with inputs in the order in which kernels pair them."""
        return self.weight.swapaxes(1, 2).reshape(len(self.weight), -1)

    def restored(self, rows: Array) -> Array:
        """Return codes in the order of `rows` in that of the weight, (C_out, C_in, K)."""
        outputs, inputs, taps = self.weight.shape
        return rows.reshape(outputs, taps, inputs).swapaxes(1, 2)


Moments: TypeAlias = dict[tuple[str, int], npt.NDArray[np.float64]]
"""Sums of products of a tensor's channels, and one more that is always 1, with each other, shape
(C + 1, C + 1), by the tensor, and by the frames that the second factor is later."""


_ROUNDING = 1e-6
"""Share of a tensor's energy that its moments may be wrong by, as sums in FP32."""


def _mean(moments: Moments, layer: _GptqLayer) -> npt.NDArray[np.float64]:
    """Return the mean of the channels that a layer reads, (C,)."""
    first = moments[layer.source, 0]
    means: npt.NDArray[np.float64] = first[-1, :-1] / max(first[-1, -1], 1)
    return means if layer.steps is None else means / layer.steps


def _products(taken: Moments, layer: _GptqLayer, *, centred: bool) -> npt.NDArray[np.float64]:
    """Return Σ x xᵀ of the neighbourhoods x that a layer multiplies, (K, C, K, C).

    Zeros where x is the same throughout but for rounding, such as the style of one recording, and
    where there was none.
    The diagonal is raised by its mean times the number of inputs for each frame. Codes of few
    frames would fit these, and keep other texts worse than codes rounded to nearest do: in the text
    encoders of two trained voices (joe, libritts; 0.7 frames for an input) durations then differ by
    18 and 15 thousandths of a frame, so by 12 and 10, rounded to nearest by 13 and 11.
    """
    taps, channels = len(layer.lags), layer.weight.shape[1]
    moments = np.empty((taps, channels, taps, channels))
    mean = _mean(taken, layer) if centred else np.zeros(channels)
    steps = np.ones(channels) if layer.steps is None else layer.steps
    less = np.vstack([np.diag(1 / steps), -mean])  # x / steps - mean of [x, 1]
    for later in range(taps):
        block = less.T @ taken[layer.source, layer.lags[later]] @ less
        for tap in range(taps - later):
            moments[tap, :, tap + later] = block
            moments[tap + later, :, tap] = block.T
    whole = np.diagonal(taken[layer.source, 0])[:-1] / steps**2
    least, each = _ROUNDING * whole.sum(), np.arange(channels)
    energy = moments[0, each, 0, each].sum()
    if energy <= 10 * least:
        return np.zeros_like(moments)
    frames = taken[layer.source, 0][-1, -1]
    for tap in range(taps):
        # With `least` they are moments of some vectors.
        moments[tap, each, tap, each] += max(least, taps / frames * energy)
    return moments


def choose_codes(
    graph: Graph,
    decisions: Sequence[Decision],
    calls: Iterator[Feeds],
    by_channel: Mapping[str, ChannelCodes],
    taken: Moments,
) -> list[Chosen | None]:
    """Return the codes that GPTQ chooses for each decision; None where it chooses none.

    Left to rounding are operators that are no product of frames with one matrix: several
    groups, two axes, tables, recurrent ones, transposed convolutions that are no convolution into
    phases, and products along the time of what a convolution reads.

    Args:
        graph: In FP32, as it will be converted.
        decisions: Those that `is_asked` is true for; there may be several for an operator.
        calls: Inputs of the graph with fed noise, of which the first few are used.
        by_channel: Codes of what operators with ranges by channel read.
        taken: Moments of the graph so far, to which those that are missing are added.
    """
    # A vector has no frames.
    vectors = {tensor for tensor, shape in known_shapes(graph).items() if len(shape) < 2}
    layers = [_layer(graph, decision, by_channel) for decision in decisions]
    layers = [None if layer is None or layer.source in vectors else layer for layer in layers]
    _collect(graph.model, [layer for layer in layers if layer is not None], calls, taken)
    return [None if layer is None else _chosen(layer, taken) for layer in layers]


def is_asked(decision: Decision) -> bool:
    """Return True if GPTQ is to choose the codes of an operator's weight where it can."""
    in_four = decision.weights == Weights.INT4 and decision.algorithm == Algorithm.GPTQ
    # Of 12 bits, weights that are no pairs are stored in 16.
    in_twelve = decision.weights == Weights.INT12 and decision.parameters % 2 == 0
    is_whole = decision.weights == Weights.INT8 or in_twelve
    return decision.weight is not None and (in_four or is_whole)


def _layer(
    graph: Graph, decision: Decision, by_channel: Mapping[str, ChannelCodes]
) -> _GptqLayer | None:
    node = graph.producer(decision.output)
    assert node is not None
    # Who shares a weight reads something else.
    if graph.constant(node.input[0]) is not None or len(graph.readers(decision.tensor)) > 1:
        return None
    if node.op_type in {"MatMul", "Gemm"} and not attribute(node, "transA", 0):
        # Moments of a tensor are along one axis.
        if any(reader.op_type in _ALONG_TIME for reader in graph.readers(node.input[0])):
            return None
        weight = np.moveaxis(graph.value(decision.tensor), decision.axis, 0)
        layer = _GptqLayer(decision, node.input[0], weight[:, :, None])
    else:
        form = integer_form(graph, node)
        # Blocks of four bits are those of the weight as it stands.
        in_blocks = decision.weights == Weights.INT4 and decision.activations != Activations.STATIC
        if form is None or (in_blocks and node.op_type == "ConvTranspose"):
            return None
        plain = form.convolution
        has_bias = len(node.input) > 2
        layer = _GptqLayer(decision, node.input[0], plain.weight, plain, form.phases, has_bias)
        if decision.activations in BY_CHANNEL:
            steps = by_channel[node.input[0]].scales
            layer = replace(layer, weight=plain.weight * steps[:, None], steps=steps)
    is_long = layer.weight[0].size > _MOST_INPUTS and decision.weights != Weights.INT4
    return None if is_long else layer


def _collect(
    model: onnx.ModelProto, layers: Sequence[_GptqLayer], calls: Iterator[Feeds], taken: Moments
) -> None:
    """Add the moments of what layers read to those that were taken."""
    lags = sorted({(layer.source, lag) for layer in layers for lag in layer.lags} - taken.keys())
    sources = {source for source, _ in lags}
    reading = (layer for layer in layers if layer.source in sources)
    axes = {layer.source: -2 if layer.convolution is None else 2 for layer in reading}
    sums: Moments = {}
    for windows in collect_windows(model, axes, _FRAMES, islice(calls, _CALLS)):
        for source, group in groupby(lags, lambda pair: pair[0]):
            frames = _frames(windows[source], axes[source])
            for _, lag in group:
                kept = max(frames.shape[2] - lag, 0)
                product = (frames[:, :, :kept] @ frames[:, :, lag:].swapaxes(1, 2)).sum(0)
                total = sums.get((source, lag))
                sums[source, lag] = product + (0.0 if total is None else total)
    for (tensor, _), total in sums.items():
        if not np.isfinite(total).all():
            raise QuantizationError(f"tensor '{tensor}': calibration met values not finite")
    taken.update(sums)


def _frames(window: Array, axis: int) -> Array:
    """Return a window as (B, C + 1, T), the last channel 1."""
    if axis != 2:
        window = window.reshape(1, -1, window.shape[-1]).swapaxes(1, 2)
    return np.pad(window, ((0, 0), (0, 1), (0, 0)), constant_values=1)


def _chosen(layer: _GptqLayer, moments: Moments) -> Chosen:
    if layer.decision.weights != Weights.INT4:
        return _whole_codes(layer, moments)
    nearest = round_blocks(layer.weight, layer.decision.group_size)
    rows = layer.weight.reshape(len(layer.weight), -1)
    # Blocks are those of the weight as it stands, (C_in, K).
    beside = (
        _products(moments, layer, centred=False).transpose(1, 0, 3, 2).reshape([rows.shape[1]] * 2)
    )
    codes = gptq(rows, beside, nearest.steps(), (LOWEST, HIGHEST))
    return Blocks(codes, nearest.factors, nearest.scales)


def _whole_codes(layer: _GptqLayer, moments: Moments) -> WholeCodes:
    """Choose codes of 8 or 12 bits; a bias, where there is one, is to keep the output's mean."""
    multiplied = _is_multiplied(layer.decision)
    scales, largest = _scales(layer, multiplied), CODE_LIMIT
    if layer.decision.weights == Weights.INT12:
        largest = largest_code(REMAINDERS)
        scales = usable_scales(scales * np.float32(CODE_LIMIT / largest))
    beside = _products(moments, layer, centred=layer.has_bias).reshape([layer.rows.shape[1]] * 2)
    limits, pair_limit = (-largest, largest), PAIR_LIMIT if multiplied else None
    channels = layer.weight.shape[1]
    rows = gptq(layer.rows, beside, scales[:, None], limits, pair_limit=pair_limit, row=channels)
    codes, shift = layer.restored(rows), None
    if layer.has_bias:
        lost = (layer.weight - codes * scales[:, None, None].astype(np.float64)).sum(2)
        shift = (lost @ _mean(moments, layer)).reshape(layer.phases, -1).mean(0)
    if layer.phases > 1 and layer.decision.activations == Activations.NONE:
        codes = whole_kernel(codes, layer.phases)
        scales = scales[: len(codes)]
    if layer.convolution is None:
        codes = codes[:, :, 0]
    return WholeCodes(codes, scales, shift)


def _is_multiplied(decision: Decision) -> bool:
    """Return True if integer kernels multiply the codes with activations as signed bytes."""
    if decision.activations == Activations.DYNAMIC:
        return decision.operator == "MatMul"
    return decision.activations in CALIBRATED


def _scales(layer: _GptqLayer, multiplied: bool) -> Array:
    """Return the scale of each output; phases have their own where integers multiply them."""
    if layer.phases > 1 and not multiplied:
        whole = whole_kernel(layer.weight, layer.phases)
        return np.tile(round_weight(whole, 0, multiplied=False)[1], layer.phases)
    return round_weight(layer.weight, 0, multiplied=multiplied)[1]
