"""Watching a graph while it runs."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.graphs import make_model, make_node
from tts_compress.errors import ModelError, QuantizationError
from tts_compress.numerics.ranges import choose_range
from tts_compress.onnx.quantize.collect import _channel_extremes, _sample_values, _watched, collect
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.tensor import Tensor
from tts_compress.recipes.recipe import Calibration

_OBSERVERS = ("minmax", "percentile", "entropy", "mse")


@pytest.fixture
def graph() -> onnx.ModelProto:
    """`middle = sqrt(x)`, `y = 2 middle`, of any length."""
    nodes = [make_node("Sqrt", "x", "middle"), make_node("Mul", "middle two", "y")]
    shape = ["b", "c", "t"]
    return make_model(nodes, {"x": shape}, {"y": shape}, {"two": np.array(2.0)})


def _calls(count: int, length: int = 50) -> Iterator[dict[str, Any]]:
    for index in range(count):
        generator = np.random.default_rng(index)
        shape = (1, 4, generator.integers(1, length))
        yield {"x": generator.uniform(0, 9, shape).astype(np.float32)}


@pytest.mark.parametrize("observer", _OBSERVERS)
def test_calls_of_any_length_make_a_range(graph: onnx.ModelProto, observer: Any) -> None:
    seen = collect(graph, ["x", "middle", "y"], [], _calls(5))[0]
    for name, top in {"x": 9, "middle": 3, "y": 6}.items():
        low, high = choose_range(seen[name], Calibration(observer=observer))
        assert low == 0
        assert 0.3 * top < high <= top


def test_call_without_elements_shows_no_range(graph: onnx.ModelProto) -> None:
    """The first call of a language model has an empty past: it was refused as not finite."""
    empty: dict[str, Any] = {"x": np.zeros((1, 4, 0), np.float32)}
    seen, whole = (collect(graph, ["x"], [], [*e, *_calls(3)])[0]["x"] for e in ([empty], []))
    assert (seen.low, seen.high) == (whole.low, whole.high)
    with pytest.raises(
        QuantizationError, match="'x' has no elements in any calibration call; give"
    ):
        collect(graph, ["x"], [], [empty])


def test_extremes_are_exact_and_small_tensors_are_seen_whole(graph: onnx.ModelProto) -> None:
    seen = collect(graph, ["middle"], [], _calls(6))[0]["middle"]
    values = [np.sqrt(call["x"]) for call in _calls(6)]
    assert seen.low == min(v.min() for v in values)
    assert seen.high == max(v.max() for v in values)
    assert seen.counts.sum() == sum(v.size for v in values)


def test_sample_of_a_large_tensor_is_spread_over_it(graph: onnx.ModelProto) -> None:
    """Every channel and every part of the time is in it about equally."""
    ramp = np.linspace(0, 100, 400_000, dtype=np.float32).reshape(1, 4, -1)
    seen = collect(graph, ["x"], [], [{"x": ramp}])[0]["x"]
    used = seen.counts[seen.counts.size // 2 :].reshape(64, -1).sum(axis=1)
    inside = used[: int(100 / seen.span * 64)]
    assert 5_000 < seen.counts.sum() < 40_000
    assert inside.min() > 0.9 * inside.max() - 2


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_calls(graph: onnx.ModelProto) -> None:
    """Forty times the calls; each activation kept would add 1.6 MB."""

    def peak(count: int) -> int:
        gc.collect()
        tracemalloc.start()
        calls: Iterator[Feeds] = ({"x": np.ones((1, 4, 100_000), np.float32)} for _ in range(count))
        collect(graph, ["x", "middle", "y"], [], calls)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)
    assert peak(80) < peak(2) + 2_000_000


@pytest.mark.parametrize(
    "statistics", [[_sample_values], [_channel_extremes], [_sample_values, _channel_extremes]]
)
def test_statistics_are_taken_before_the_next_tensor_but_one_is_made(
    statistics: list[Callable[[Tensor], list[Tensor]]], tmp_path: Path
) -> None:
    """Tensors that wait for their statistics until the graph has run fill a gigabyte."""
    names = ["x", *(f"t{index}" for index in range(12))]
    nodes = [make_node("Sqrt", source, made) for source, made in pairwise(names)]
    nodes.append(make_node("Sqrt", f"{names[-1]}", "y"))
    shape = ["b", "c", "t"]
    model = make_model(nodes, {"x": shape}, {"y": shape})
    observed, _ = _watched(model, [(name, watch) for watch in statistics for name in names[1:]])
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(
        observed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, {"x": np.ones((1, 2, 9), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [e["args"]["op_name"] for e in events if e["name"].endswith("_kernel_time")]
    waiting, most = 0, 0
    for operator in ran:
        waiting += {"Sqrt": len(statistics), "ReduceMax": -1}.get(operator, 0)
        most = max(most, waiting)
    assert ran.count("ReduceMax") == 12 * len(statistics)
    assert most <= 2 * len(statistics)


@pytest.mark.parametrize("place", [0, 1, 777, 199_999])
@pytest.mark.parametrize("value", [-1.0, np.inf])
def test_activations_that_are_not_finite_are_refused_by_name(
    graph: onnx.ModelProto, place: int, value: float
) -> None:
    """The root of −1 is NaN; it has to be found wherever it is, sampled or not."""
    values = np.ones(200_000, np.float32)
    values[place] = value
    calls: list[Feeds] = [{"x": values.reshape(1, 2, -1)}]
    for whole, by_channel in ([["middle"], []], [[], ["middle"]]):
        with pytest.raises(QuantizationError, match=r"tensor 'middle'.*not finite"):
            collect(graph, whole, by_channel, calls)


@pytest.mark.parametrize("version", [15, 18])
def test_extremes_are_those_of_each_channel_and_call(graph: onnx.ModelProto, version: int) -> None:
    graph.opset_import[0].version = version
    calls: list[dict[str, Any]] = [
        {"x": np.array([[[1, 4, 9], [0, 0, 0]], [[1, 1, 25], [4, 0, 0]]], np.float32)},
        {"x": np.array([[[1], [16]]], np.float32)},
    ]
    _, extremes = collect(graph, [], ["middle", "x"], calls)
    assert extremes["middle"].tolist() == [[[1, 0], [5, 2]], [[1, 4], [1, 4]]]
    assert extremes["x"].tolist() == [[[1, 0], [25, 4]], [[1, 16], [1, 16]]]


def test_histograms_and_extremes_of_one_pass_are_those_of_two(graph: onnx.ModelProto) -> None:
    histograms, extremes = collect(graph, ["middle", "y"], ["x", "middle"], _calls(4, 9))
    alone, _ = collect(graph, ["middle", "y"], [], _calls(4, 9))
    _, apart = collect(graph, [], ["x", "middle"], _calls(4, 9))
    for name, histogram in alone.items():
        assert np.array_equal(histograms[name].counts, histogram.counts)
    for name, pairs in apart.items():
        assert np.array_equal(extremes[name], pairs)


def test_calls_that_show_nothing_are_an_error(graph: onnx.ModelProto) -> None:
    """But where nothing is looked for, nothing is run."""
    assert collect(graph, [], [], _calls(1)) == ({}, {})
    for ranges, extremes in (("x", ""), ("", "x")):
        with pytest.raises(QuantizationError, match="is the calibration set empty"):
            collect(graph, [*ranges], [*extremes], [])
    with pytest.raises(ModelError, match="cannot be run"):
        collect(graph, ["x"], [], [{"x": np.ones(3, np.float32)}])


def test_graph_is_not_changed(graph: onnx.ModelProto) -> None:
    before = graph.SerializeToString()
    collect(graph, ["x"], [], _calls(1))
    assert graph.SerializeToString() == before
