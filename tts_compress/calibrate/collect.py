"""Watching the activations of an ONNX graph while it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.calibrate.histogram import Histogram
from tts_compress.errors import QuantizationError
from tts_compress.models.onnx_session import open_session, run_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tts_compress.models.base import Feeds

__all__ = ["collect"]

_SAMPLE = 16_384
"""About as many values of a tensor leave the graph per run; its extremes are always exact."""

_PREFIX = "tts_compress.observe."


def collect(
    model: onnx.ModelProto, tensors: Sequence[str], calls: Iterable[Feeds]
) -> dict[str, Histogram]:
    """Run a graph on real inputs and return a histogram of each named tensor.

    Extremes and an evenly strided sample are taken inside the graph, so memory depends neither on
    the number of calls nor on their lengths.

    Raises:
        QuantizationError: A tensor had values that are not finite, or there were no calls.
    """
    histograms = {name: Histogram() for name in tensors}
    if not tensors:
        return histograms
    session = open_session(_observed(model, tensors), "the calibration graph")
    outputs = [_names(index) for index in range(len(tensors))]
    wanted = [name for names in outputs for name in names]
    runs = 0
    for feeds in calls:
        values = iter(run_session(session, feeds, "the calibration graph", wanted))
        for name, histogram in histograms.items():
            low, high, total, sample = (next(values) for _ in range(4))
            try:
                # The runtime's extremes pass over NaN; a sum does not.
                histogram.add(sample, float(low), float(total if np.isnan(total) else high))
            except QuantizationError as error:
                raise QuantizationError(f"tensor '{name}': {error}") from error
        runs += 1
    if not runs:
        raise QuantizationError("calibration had nothing to run; is the calibration set empty?")
    return histograms


def _names(index: int) -> list[str]:
    return [f"{_PREFIX}{index}.{part}" for part in ("low", "high", "total", "sample")]


def _observed(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a copy with more outputs per tensor: minimum, maximum, sum and a sample."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    graph = observed.graph
    constants = {"zero": [0], "one": [1], "two": [2], "flat": [-1]}
    constants |= {"share": [2 * _SAMPLE], "end": [np.iinfo(np.int64).max]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), _PREFIX + name)
        for name, value in constants.items()
    )
    for index, tensor in enumerate(tensors):
        graph.node.extend(_watch(tensor, index))
        graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in _names(index)
        )
    return observed


def _watch(tensor: str, index: int) -> list[onnx.NodeProto]:
    low, high, total, sample = _names(index)
    own = f"{_PREFIX}{index}."

    def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [output], output, **attributes)

    return [
        node("ReduceMin", [tensor], low, keepdims=0),
        node("ReduceMax", [tensor], high, keepdims=0),
        node("ReduceSum", [tensor], total, keepdims=0),
        # An odd stride does not lock onto channels of even length: 2 * (size / 2n) + 1.
        node("Size", [tensor], own + "size"),
        node("Div", [own + "size", _PREFIX + "share"], own + "half_stride"),
        node("Mul", [own + "half_stride", _PREFIX + "two"], own + "even_stride"),
        node("Add", [own + "even_stride", _PREFIX + "one"], own + "stride"),
        node("Reshape", [tensor, _PREFIX + "flat"], own + "flat"),
        node(
            "Slice",
            [own + "flat", *(_PREFIX + n for n in ("zero", "end", "zero")), own + "stride"],
            sample,
        ),
    ]
