"""Watching the activations of an ONNX graph while it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.errors import QuantizationError
from tts_compress.numerics.histogram import Histogram
from tts_compress.onnx.session import open_session, run_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tts_compress.onnx.session import Feeds

__all__ = ["Calls", "collect", "collect_peaks"]

_SAMPLE = 16_384
"""About as many values of a tensor leave the graph per run; its extremes are always exact."""

_PREFIX = "tts_compress.observe."

_STATISTICS = ("low", "high", "total", "sample")
_PEAKS = ("low", "high")


@dataclass(frozen=True, slots=True)
class Calls:
    """Inputs to run a graph on."""

    feeds: Callable[[], Iterator[Feeds]]
    """Returns the inputs of each call of the graph with fed noise, the same every time."""

    total: int
    """Number of texts or calls, for the progress bar."""


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
    for values in _watched(model, tensors, _STATISTICS, calls):
        for name, (low, high, total, sample) in values.items():
            try:
                # The runtime's extremes pass over NaN; a sum does not.
                histograms[name].add(sample, float(low), float(total if np.isnan(total) else high))
            except QuantizationError as error:
                raise QuantizationError(f"tensor '{name}': {error}") from error
    return histograms


def collect_peaks(
    model: onnx.ModelProto, tensors: Sequence[str], calls: Iterable[Feeds]
) -> dict[str, npt.NDArray[np.float64]]:
    """Run a graph on real inputs and return how large each channel of each tensor gets.

    Args:
        model: The graph.
        tensors: Names of tensors (B, C, T).
        calls: Its inputs.

    Returns:
        The largest magnitude in each channel, (C,), on average over the calls: a peak of one call
        hardly counts.

    Raises:
        QuantizationError: A tensor had values that are not finite, or there were no calls.
    """
    sums: dict[str, npt.NDArray[np.float64]] = {}
    runs = 0
    for values in _watched(model, tensors, _PEAKS, calls) if tensors else ():
        for name, (low, high) in values.items():
            peaks = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
            if not np.isfinite(peaks).all():
                raise QuantizationError(f"tensor '{name}': calibration met values not finite")
            sums[name] = sums[name] + peaks if runs else peaks
        runs += 1
    return {name: total / runs for name, total in sums.items()}


def _watched(
    model: onnx.ModelProto,
    tensors: Sequence[str],
    statistics: Sequence[str],
    calls: Iterable[Feeds],
) -> Iterator[dict[str, list[Any]]]:
    """Run the graph and yield the statistics of every tensor in each call, by its name."""
    observed = _observed(model, tensors, statistics)
    session = open_session(observed, "the calibration graph")
    del observed  # the session has its own
    wanted = [name for index in range(len(tensors)) for name in _names(index, statistics)]
    runs = 0
    for feeds in calls:
        found = iter(run_session(session, feeds, "the calibration graph", wanted))
        yield {tensor: [next(found) for _ in statistics] for tensor in tensors}
        runs += 1
    if not runs:
        raise QuantizationError("calibration had nothing to run; is the calibration set empty?")


def _names(index: int, statistics: Sequence[str]) -> list[str]:
    return [f"{_PREFIX}{index}.{part}" for part in statistics]


def _observed(
    model: onnx.ModelProto, tensors: Sequence[str], statistics: Sequence[str]
) -> onnx.ModelProto:
    """Return a copy with more outputs, the statistics of each tensor."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    graph = observed.graph
    constants = {"zero": [0], "one": [1], "two": [2], "flat": [-1], "outer": [0, 2]}
    constants |= {"share": [2 * _SAMPLE], "end": [np.iinfo(np.int64).max]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), _PREFIX + name)
        for name, value in constants.items()
    )
    watch = _watch if statistics == _STATISTICS else _watch_channels(_version(model))
    # The runtime begins with the last output and goes back to what it needs. So the first tensor's
    # statistics stand last: each is taken, and its tensor freed, before the next tensor is made.
    # The other way around all tensors would be kept until the graph has run.
    for index, tensor in reversed(list(enumerate(tensors))):
        graph.node.extend(watch(tensor, index))
        graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in _names(index, statistics)
        )
    return observed


def _watch(tensor: str, index: int) -> list[onnx.NodeProto]:
    low, high, total, sample = _names(index, _STATISTICS)
    own = f"{_PREFIX}{index}."
    return [
        _node("ReduceMin", [tensor], low, keepdims=0),
        _node("ReduceMax", [tensor], high, keepdims=0),
        _node("ReduceSum", [tensor], total, keepdims=0),
        # An odd stride does not lock onto channels of even length: 2 * (size / 2n) + 1.
        _node("Size", [tensor], own + "size"),
        _node("Div", [own + "size", _PREFIX + "share"], own + "half_stride"),
        _node("Mul", [own + "half_stride", _PREFIX + "two"], own + "even_stride"),
        _node("Add", [own + "even_stride", _PREFIX + "one"], own + "stride"),
        _node("Reshape", [tensor, _PREFIX + "flat"], own + "flat"),
        _node(
            "Slice",
            [own + "flat", *(_PREFIX + n for n in ("zero", "end", "zero")), own + "stride"],
            sample,
        ),
    ]


def _watch_channels(version: int) -> Callable[[str, int], list[onnx.NodeProto]]:
    """Return what watches the channels of a tensor (B, C, T)."""
    # From version 18 of the standard operators on, what is reduced is an input.
    inputs = [_PREFIX + "outer"] if version >= 18 else []
    attributes = {} if version >= 18 else {"axes": [0, 2]}

    def watch(tensor: str, index: int) -> list[onnx.NodeProto]:
        low, high = _names(index, _PEAKS)
        return [
            _node("ReduceMin", [tensor, *inputs], low, keepdims=0, **attributes),
            _node("ReduceMax", [tensor, *inputs], high, keepdims=0, **attributes),
        ]

    return watch


def _node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], output, **attributes)


def _version(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators."""
    return int(next(o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}))
