"""Four-bit weights of a graph chosen by GPTQ on what its operators read in calibration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import onnx

from tts_compress.errors import QuantizationError
from tts_compress.numerics.four_bits import HIGHEST, LOWEST, Blocks, round_blocks
from tts_compress.numerics.gptq import gptq
from tts_compress.onnx.graph import Array, Graph, attribute
from tts_compress.onnx.integer.convolutions import integer_form
from tts_compress.onnx.modules import Convolution, read_convolution
from tts_compress.onnx.quantize.collect import collect_windows
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.session import Feeds
from tts_compress.recipes.formats import Activations, Algorithm, Weights

_CALLS, _FRAMES = 32, 384
"""Calls that moments are taken of, and frames of each: 12,288 rows for weights of up to a few
thousand inputs."""

Moments = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Layer:
    """An operator whose output is a product of the neighbourhoods of frames with a matrix."""

    output: str
    source: str
    """The tensor it reads: (B, C, T) of a convolution, else (..., T, C)."""

    weight: Array
    """As it is stored, outputs first: (C_out, C_in, K) of a convolution, else (C_out, C_in)."""

    block: int
    convolution: Convolution | None = None

    @property
    def kind(self) -> tuple[str, int, int, int]:
        """A key of everything that its moments depend on."""
        found = self.convolution
        if found is None:
            return self.source, 0, 0, 0
        return self.source, found.weight.shape[2], found.dilation, found.stride

    def rows(self, window: Array) -> npt.NDArray[np.float64]:
        """Return the inputs of each frame of a window, (frames, C_in · K)."""
        if self.convolution is None:
            return window.reshape(-1, window.shape[-1]).astype(np.float64)
        found, taps = self.convolution, self.convolution.weight.shape[2]
        span = found.dilation * (taps - 1)
        if window.shape[2] <= span:  # edges are padded with silence
            window = np.pad(window, ((0, 0), (0, 0), (span, span)))
        seen = np.lib.stride_tricks.sliding_window_view(window, span + 1, axis=2)
        near = seen[:, :, :: found.stride, :: found.dilation]  # (B, C, frames, K)
        rows = near.transpose(0, 2, 1, 3).reshape(-1, window.shape[1] * taps)
        return rows.astype(np.float64)


def choose_codes(
    graph: Graph, decisions: Sequence[Decision], calls: Iterator[Feeds]
) -> dict[str, Blocks[Array]]:
    """Return the weights that decisions leave to GPTQ, in four bits, by the operators' outputs.

    Left to rounding are operators that are no product of frames with one matrix: transposed
    convolutions in FP32 arithmetic, several groups, two axes, tables, and recurrent ones.

    Args:
        graph: In FP32, as it will be converted.
        decisions: For its operators.
        calls: Inputs of the graph with fed noise, of which the first few are used.

    Raises:
        QuantizationError: A tensor had values that are not finite, or there were no calls.
    """
    layers = [layer for d in decisions if (layer := _layer(graph, d)) is not None]
    moments = _collect(graph.model, layers, calls)
    return {layer.output: _rounded(layer, moments[layer.kind]) for layer in layers}


def _layer(graph: Graph, decision: Decision) -> _Layer | None:
    if decision.weights != Weights.INT4 or decision.algorithm != Algorithm.GPTQ:
        return None
    node, size = graph.producer(decision.output), decision.group_size
    assert node is not None
    # Who shares a weight reads something else.
    if graph.constant(node.input[0]) is not None or len(graph.readers(decision.tensor)) > 1:
        return None
    if node.op_type in {"MatMul", "Gemm"} and not attribute(node, "transA", 0):
        weight = np.moveaxis(graph.value(decision.tensor), decision.axis, 0)
        return _Layer(decision.output, node.input[0], weight, size)
    found = _convolution(graph, node, decision)
    if found is None:
        return None
    return _Layer(decision.output, node.input[0], found.weight, size, found)


def _convolution(graph: Graph, node: onnx.NodeProto, decision: Decision) -> Convolution | None:
    """Return the ordinary convolution along time that an operator will be, if it is one."""
    found = read_convolution(graph, node)
    if found is None or found.groups != 1:
        return None
    if node.op_type == "ConvTranspose":
        form = integer_form(graph, node) if decision.activations == Activations.STATIC else None
        return None if form is None else form.convolution
    return found


def _collect(
    model: onnx.ModelProto, layers: Sequence[_Layer], calls: Iterator[Feeds]
) -> Mapping[tuple[str, int, int, int], Moments]:
    """Return Σ x xᵀ of what layers read; those that read the same share it."""
    kinds = {layer.kind: layer for layer in layers}
    axes = {layer.source: -2 if layer.convolution is None else 2 for layer in layers}
    moments: dict[tuple[str, int, int, int], Moments] = {}
    for windows in collect_windows(model, axes, _FRAMES, islice(calls, _CALLS)):
        for kind, layer in kinds.items():
            rows = layer.rows(windows[layer.source])
            total = rows.T @ rows
            moments[kind] = moments[kind] + total if kind in moments else total
    for (tensor, *_), total in moments.items():
        if not np.isfinite(total).all():
            raise QuantizationError(f"tensor '{tensor}': calibration met values not finite")
    return moments


def _rounded(layer: _Layer, moments: Moments) -> Blocks[Array]:
    nearest = round_blocks(layer.weight, layer.block)
    rows = layer.weight.reshape(len(layer.weight), -1)
    codes = gptq(rows, moments, nearest.steps(), (LOWEST, HIGHEST))
    return Blocks(codes, nearest.factors, nearest.scales)
