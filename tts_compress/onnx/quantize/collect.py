"""Observation of the activations of an ONNX graph while it runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx.helper import make_empty_tensor_value_info

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Histogram
from tts_compress.onnx.graph import Array, Graph, with_outputs
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session
from tts_compress.onnx.tensor import Tensor

Extremes: TypeAlias = npt.NDArray[np.float64]
"""The smallest and the largest value of each channel in each call, shape (calls, 2, C)."""

Watch: TypeAlias = Callable[[Tensor], list[Tensor]]
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
    model: onnx.ModelProto,
    tensors: Sequence[str],
    channels: Sequence[str],
    calls: Iterable[Feeds],
) -> tuple[dict[str, Histogram], dict[str, Extremes]]:
    """Run a graph, with fed noise, on real inputs and observe tensors.

    Extremes and an evenly strided sample are taken inside the graph, so memory depends neither on
    the number of calls nor on their lengths.

    Args:
        model: A graph in FP32.
        tensors: Those of which a histogram is made.
        channels: Those of shape (B, C, T) of which the extremes of each channel are taken.
        calls: Inputs of the graph with fed noise.

    Returns:
        Histograms, and extremes, by tensor.
    """
    histograms = {name: Histogram() for name in tensors}
    extremes: dict[str, list[Extremes]] = {name: [] for name in channels}
    watches: list[tuple[str, Watch]] = [(name, _sample_values) for name in tensors]
    watches += [(name, _channel_extremes) for name in channels]
    adds: list[Callable[..., None]] = [partial(_add_sample, histograms[name]) for name in tensors]
    adds += [partial(_add_extremes, extremes[name]) for name in channels]
    seen = set[str]()
    for observed in _observe(model, watches, calls):
        for (name, _), add, values in zip(watches, adds, observed, strict=True):
            if not values[-1].size:
                continue  # a tensor without elements, as a past of no steps, has no range
            seen.add(name)
            try:
                add(*values)
            except QuantizationError as error:
                raise QuantizationError(f"tensor '{name}': {error}") from error
    if empty := next((name for name, _ in watches if name not in seen), None):
        raise QuantizationError(
            f"tensor '{empty}' has no elements in any calibration call; give calls in which it has "
            "some, or exclude its module in the recipe"
        )
    return histograms, {name: np.array(pairs) for name, pairs in extremes.items()}


def _add_sample(histogram: Histogram, low: Array, high: Array, total: Array, sample: Array) -> None:
    # The runtime's extremes pass over NaN; a sum does not.
    histogram.add(sample, float(low), float(total if np.isnan(total) else high))


def _add_extremes(extremes: list[Extremes], low: Array, high: Array, total: Array) -> None:
    if not np.isfinite([low, high, total]).all():
        raise QuantizationError("calibration met values that are not finite")
    extremes.append(np.array([low, high], np.float64))


def collect_windows(
    model: onnx.ModelProto, axes: Mapping[str, int], frames: int, calls: Iterable[Feeds]
) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """Run a graph, with fed noise, on real inputs and yield the middle of each named tensor."""

    def watch(tensor: Tensor) -> list[Tensor]:
        return [_middle(tensor, axes[tensor.name], frames)]

    for observed in _observe(model, [(name, watch) for name in axes], calls):
        yield {name: window for name, (window,) in zip(axes, observed, strict=True)}


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
    model: onnx.ModelProto, watches: Sequence[tuple[str, Watch]], calls: Iterable[Feeds]
) -> Iterator[list[list[Any]]]:
    """Run a graph with operators that watch tensors; yield what each of them returns."""
    if not watches:
        return
    observed, outputs = _watched(model, watches)
    session = open_session(observed, "the calibration graph", briefly=True)
    del observed  # the session has its own
    wanted = [name for several in outputs for name in several]
    runs = 0
    for feeds in calls:
        spec = f"the graph with calibration call {runs}"
        values_in_turn = iter(run_session(session, feeds, spec, wanted))
        values = [list(islice(values_in_turn, len(several))) for several in outputs]
        del values_in_turn
        yield values
        values.clear()  # the next run makes its own
        runs += 1
    if not runs:
        raise QuantizationError("calibration had nothing to run; is the calibration set empty?")


def _watched(
    model: onnx.ModelProto, watches: Sequence[tuple[str, Watch]]
) -> tuple[onnx.ModelProto, list[list[str]]]:
    """Return a copy with operators that watch tensors, and the outputs of each of them."""
    graph, constants = Graph(feed_noise(model)), dict[tuple[str, bytes], str]()
    positions = {name: index for index, node in enumerate(graph.nodes) for name in node.output}
    outputs: list[list[str]] = [[] for _ in watches]
    # The runtime begins with the last output and goes back to what it needs. So the first tensor's
    # statistics stand last: each is taken, and its tensor freed, before the next tensor is made.
    # The other way around all tensors would be kept until the graph has run.
    for index in sorted(
        range(len(watches)), key=lambda i: positions.get(watches[i][0], -1), reverse=True
    ):
        tensor, watch = watches[index]
        watched = watch(Tensor(graph, f"{_PREFIX}{index}", tensor, constants))
        outputs[index] = [statistic.name for statistic in watched]
        graph.outputs += outputs[index]
        graph.model.graph.output.extend(map(make_empty_tensor_value_info, outputs[index]))
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
    """Return the extremes of the channels of a tensor (B, C, T), and their sums."""
    # From version 18 of the standard operators on, what is reduced is an input.
    is_input = tensor.graph.opset() >= 18
    inputs, attributes = ([[0, 2]], {}) if is_input else ([], {"axes": [0, 2]})
    ends = [tensor.apply(f"Reduce{k}", *inputs, keepdims=0, **attributes) for k in ("Min", "Max")]
    return [*ends, tensor.apply("ReduceSum", [0, 2], keepdims=0)]
