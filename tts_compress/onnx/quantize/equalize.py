"""Cross-layer equalisation: channels of one tensor brought to about the same range, exactly.

A tensor of codes has one scale for all its channels, so a quiet channel beside a loud one keeps few
of its 256 levels. Convolutions can take over a factor per channel, 1/s in the rows of those that
make a tensor and s in the columns of those that read it, and what stands between them does not
notice where it is positively homogeneous: f(s·x) = s·f(x) for s > 0.

After Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019);
the factors come from observed activations, as in Xiao et al., "SmoothQuant" (2022), because weights
have a scale per output channel here and need no equalising themselves.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize.collect import collect_peaks
from tts_compress.onnx.quantize.equalization_groups import find_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from tts_compress.onnx.graph import Array
    from tts_compress.onnx.quantize.equalization_groups import Group
    from tts_compress.onnx.session import Feeds

__all__ = ["equalizable_tensors", "equalize", "equalize_channels"]

_CALLS = 16
"""Calls on which channels are compared; how loud they are on average hardly moves after a few."""

_LEAST = 1 / 64
"""The smallest factor, relative to the loudest channel's: a channel that calibration hardly saw
may speak up later."""


def equalize_channels(
    model: onnx.ModelProto, coded: Sequence[str], calls: Iterator[Feeds]
) -> onnx.ModelProto:
    """Return an equal model whose tensors have channels of about the same range.

    Args:
        model: A graph in FP32; it is not changed.
        coded: Tensors that will be rounded to codes with one scale each.
        calls: Inputs of the graph with fed noise, of which the first few are used.

    Raises:
        QuantizationError: A tensor had values that are not finite, or there were no calls.
    """
    tensors = equalizable_tensors(model, coded)
    peaks = collect_peaks(feed_noise(model), tensors, islice(calls, _CALLS))
    return equalize(model, peaks)[0]


def equalizable_tensors(model: onnx.ModelProto, coded: Sequence[str]) -> list[str]:
    """Return the tensors whose channel ranges `equalize` asks for, in the order given.

    Args:
        model: A graph in FP32.
        coded: Tensors that will be rounded to codes with one scale each.
    """
    found = {tensor for group in find_groups(Graph(model)) for tensor in group.tensors}
    return [tensor for tensor in coded if tensor in found]


def equalize(model: onnx.ModelProto, peaks: Mapping[str, Array]) -> tuple[onnx.ModelProto, int]:
    """Return an equal model whose tensors have channels of about the same range.

    Args:
        model: A graph in FP32; it is not changed.
        peaks: The largest magnitude in each channel, (C,), of the tensors that are to be rounded.

    Returns:
        The model, equal up to the rounding of its weights, and how many groups of tensors that
        share their factors were equalised.
    """
    graph = Graph(model)
    changed = 0
    for group in find_groups(graph):
        known = [peaks[tensor] for tensor in group.tensors if tensor in peaks]
        if known:
            _fold(graph, group, _factors(known))
            changed += 1
    return graph.finish(), changed


def _factors(peaks: list[Array]) -> Array:
    """Return a positive factor per channel, (C,), the largest of them about 1.

    Each tensor counts the same, however loud it is: it will have a scale of its own.
    """
    shares = [peak / peak.max() for peak in peaks if peak.max() > 0]
    if not shares:
        return np.ones(len(peaks[0]))
    factors: Array = np.maximum(np.mean(shares, axis=0, dtype=np.float64), _LEAST)
    return factors


def _fold(graph: Graph, group: Group, factors: Array) -> None:
    for node in group.producers:
        rows = 0 if node.op_type == "Conv" else 1
        _scale(graph, node, 1, 1 / factors, rows)
        if len(node.input) > 2 and node.input[2]:
            _scale(graph, node, 2, 1 / factors, 0)
    for node in group.consumers:
        columns = 1 if node.op_type == "Conv" else 0
        _scale(graph, node, 1, factors, columns)


def _scale(graph: Graph, node: onnx.NodeProto, position: int, factors: Array, axis: int) -> None:
    """Multiply a weight or bias along an axis."""
    values = graph.constant(node.input[position])
    assert values is not None
    shape = [1] * values.ndim
    shape[axis] = -1
    scaled = (values * factors.reshape(shape)).astype(np.float32)
    name = node.input[position].removesuffix(".equalized")
    graph.replace_input(node, position, graph.add_constant(f"{name}.equalized", scaled))
