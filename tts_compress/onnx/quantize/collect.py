"""Observation of the activations of an ONNX graph while it runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.helper import make_empty_tensor_value_info

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Histogram
from tts_compress.onnx.graph import Graph, with_outputs
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session
from tts_compress.onnx.tensor import Tensor

Watch = Callable[[Tensor], list[Tensor]]
"""Returns what is observed of a tensor: its statistics, or some of its values."""

_SAMPLE = 16_384
"""About as many values of a tensor leave the graph per run; its extremes are always exact."""

_PREFIX = "tts_compress.observe."
_END = np.iinfo(np.int64).max


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
    """Run a graph, with fed noise, on real inputs and return a histogram of each named tensor.

    Extremes and an evenly strided sample are taken inside the graph, so memory depends neither on
    the number of calls nor on their lengths.
    """
    histograms = {name: Histogram() for name in tensors}
    for values in _observe(model, tensors, _sample_values, calls):
        for name, (low, high, total, sample) in values.items():
            try:
                # The runtime's extremes pass over NaN; a sum does not.
                histograms[name].add(sample, float(low), float(total if np.isnan(total) else high))
            except QuantizationError as error:
                raise QuantizationError(f"tensor '{name}': {error}") from error
    return histograms


def collect_extremes(
    model: onnx.ModelProto, tensors: Sequence[str], calls: Iterable[Feeds]
) -> dict[str, npt.NDArray[np.float64]]:
    """Run a graph, with fed noise, on real inputs and return the extremes of each channel.

    Returns:
        For each named tensor (B, C, T) the smallest and largest value of each channel in each call,
        shape (calls, 2, C).
    """
    extremes: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in tensors}
    for values in _observe(model, tensors, _channel_extremes, calls):
        for name, pair in values.items():
            extremes[name].append(np.array(pair, np.float64))
            if not np.isfinite(extremes[name][-1]).all():
                raise QuantizationError(f"tensor '{name}': calibration met values not finite")
    return {name: np.array(pairs) for name, pairs in extremes.items()}


def collect_windows(
    model: onnx.ModelProto, axes: Mapping[str, int], frames: int, calls: Iterable[Feeds]
) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """Run a graph, with fed noise, on real inputs and yield the middle of each named tensor."""

    def watch(tensor: Tensor) -> list[Tensor]:
        return [_middle(tensor, axes[tensor.name], frames)]

    for values in _observe(model, list(axes), watch, calls):
        yield {name: window for name, (window,) in values.items()}


def record_tensors(
    model: onnx.ModelProto,
    tensors: Sequence[str],
    calls: Iterable[Feeds],
    threads: int | None = None,
) -> list[dict[str, npt.NDArray[Any]]]:
    """Run a graph and return the named tensors of every call; inputs of the graph may be named.

    Args:
        model: A graph in FP32; random operators read fed noise instead.
        tensors: Their names.
        calls: Inputs of the graph with fed noise.
        threads: Threads within an operator; None leaves it to the runtime.
    """
    watched = feed_noise(model)
    inputs = {value.name for value in watched.graph.input}
    computed = [tensor for tensor in tensors if tensor not in inputs]
    observed = with_outputs(watched, computed)
    session = open_session(observed, "the observed graph", threads, briefly=True)
    recorded = []
    for feeds in calls:
        values = dict(zip(computed, run_session(session, feeds, "the observed graph"), strict=True))
        recorded.append(values | {name: feeds[name] for name in tensors if name in inputs})
    return recorded


def _observe(
    model: onnx.ModelProto, tensors: Sequence[str], watch: Watch, calls: Iterable[Feeds]
) -> Iterator[dict[str, list[Any]]]:
    """Run a graph with operators that watch tensors; yield what these return, by tensor."""
    if not tensors:
        return
    observed, outputs = _watched(model, tensors, watch)
    session = open_session(observed, "the calibration graph", briefly=True)
    del observed  # the session has its own
    wanted = [name for tensor in tensors for name in outputs[tensor]]
    runs = 0
    for feeds in calls:
        values_in_turn = iter(run_session(session, feeds, "the calibration graph", wanted))
        values = {tensor: [next(values_in_turn) for _ in outputs[tensor]] for tensor in tensors}
        del values_in_turn
        yield values
        values.clear()  # the next run makes its own
        runs += 1
    if not runs:
        raise QuantizationError("calibration had nothing to run; is the calibration set empty?")


def _watched(
    model: onnx.ModelProto, tensors: Sequence[str], watch: Watch
) -> tuple[onnx.ModelProto, dict[str, list[str]]]:
    """Return a copy with operators that watch tensors, and the outputs that belong to each."""
    graph, constants = Graph(feed_noise(model)), dict[tuple[str, bytes], str]()
    outputs = dict[str, list[str]]()
    # The runtime begins with the last output and goes back to what it needs. So the first tensor's
    # statistics stand last: each is taken, and its tensor freed, before the next tensor is made.
    # The other way around all tensors would be kept until the graph has run.
    for index, tensor in reversed(list(enumerate(tensors))):
        watched = watch(Tensor(graph, f"{_PREFIX}{index}", tensor, constants))
        outputs[tensor] = [statistic.name for statistic in watched]
        graph.outputs += outputs[tensor]
        graph.model.graph.output.extend(map(make_empty_tensor_value_info, outputs[tensor]))
    return graph.finish(), outputs


def _sample_values(tensor: Tensor) -> list[Tensor]:
    """Return a tensor's extremes, its sum, and a sample of its values."""
    extremes = [tensor.apply(f"Reduce{kind}", keepdims=0) for kind in ("Min", "Max", "Sum")]
    # An odd stride does not lock onto channels of even length: 2 * (size / 2n) + 1.
    stride = tensor.apply("Size") / [2 * _SAMPLE] * [2] + [1]
    return [*extremes, tensor.apply("Reshape", [-1]).apply("Slice", [0], [_END], [0], stride)]


def _middle(tensor: Tensor, axis: int, frames: int) -> Tensor:
    """Return the middle frames of a tensor."""
    length = tensor.apply("Shape").apply("Gather", [axis])
    begin = (length - [frames]).apply("Max", [0]) / [2]
    return tensor.apply("Slice", begin, begin.apply("Add", [frames]), [axis])


def _channel_extremes(tensor: Tensor) -> list[Tensor]:
    """Return the extremes of the channels of a tensor (B, C, T)."""
    # From version 18 of the standard operators on, what is reduced is an input.
    is_input = tensor.graph.opset() >= 18
    inputs, attributes = ([[0, 2]], {}) if is_input else ([], {"axes": [0, 2]})
    return [tensor.apply(f"Reduce{k}", *inputs, keepdims=0, **attributes) for k in ("Min", "Max")]
