"""Convolutions that a normalization over time reads: codes with a range for every channel."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.onnx.integer.emitted import emitted
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import observed_tensors
from tts_compress.onnx.quantize.equalize import equalize_channels

_CHANNELS = 16
_PLAN = frozenset({"first", "second", "last"})


def _model(*, normalized: bool = True) -> onnx.ModelProto:
    """Two layers and a stream around them, all normalized, and a last layer that is not."""
    norm = "InstanceNormalization" if normalized else "Identity"
    extra = ["scale", "shift"] if normalized else []
    nodes = [
        make_node("Conv", "x first.w first.b", "first", pads=[1, 1]),
        helper.make_node(norm, ["first", *extra], ["n1"], "n1"),
        make_node("Sin", "n1", "a1"),
        make_node("Conv", "a1 second.w", "second", pads=[1, 1]),
        make_node("Add", "second x", "stream"),
        helper.make_node(norm, ["stream", *extra], ["n2"], "n2"),
        make_node("Add", "n2 stream", "a2"),
        make_node("Conv", "a2 last.w", "last", pads=[1, 1]),
        make_node("Tanh", "last", "y"),
    ]
    generator = np.random.default_rng(0)
    values = {f"{n}.w": generator.normal(0, 0.15, (_CHANNELS, _CHANNELS, 3)) for n in _PLAN}
    # One channel is a hundred times as loud as the others: 8 bits for all would leave them nothing.
    values["first.w"][0] *= 100
    values["second.w"][1] *= 100
    values["first.b"] = generator.normal(0, 0.1, _CHANNELS)
    values |= {"scale": np.ones(_CHANNELS), "shift": np.zeros(_CHANNELS)}
    return make_model(
        nodes, {"x": ["b", _CHANNELS, "t"]}, {"y": None}, dict(sorted(values.items()))
    )


def _x(length: int = 200) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).normal(size=(1, _CHANNELS, length)).astype(np.float32)}


def _prepared(model: onnx.ModelProto, *, equalized: bool) -> onnx.ModelProto:
    graph = Graph(copy_model(model))
    if equalized:
        equalize_channels(graph, observed_tensors(graph.model, _PLAN), iter([_x()]))
    return graph.finish()


def _emitted(model: onnx.ModelProto, *, equalized: bool) -> onnx.ModelProto:
    return emitted(_prepared(model, equalized=equalized), _PLAN, _x())


def _snr(expected: Any, found: Any) -> float:
    """Return the worst channel's signal-to-noise ratio, in decibels."""
    power, noise = np.square(expected).mean(axis=(0, 2)), np.square(expected - found).mean((0, 2))
    return float(10 * np.log10((power / noise).min()))


def test_factors_leave_the_graph_equal() -> None:
    model = _model()
    expected, found = (
        run_model(m, _x(), "y")[0] for m in (model, _prepared(model, equalized=True))
    )
    assert np.abs(expected - found).max() <= 1e-5


def test_normalized_results_are_codes_and_all_others_are_real() -> None:
    operators = Counter(operators_of(_emitted(_model(), equalized=True)))
    assert operators["QLinearConv"] == 2
    assert operators["MatMulIntegerToFloat"] == 1  # `last` has nothing behind it that normalizes
    assert operators["QLinearAdd"] == 0
    # What gives channels back their size costs nothing: codes have a scale per channel.
    assert operators["Mul"] == 0
    assert operators["DequantizeLinear"] == 2


def test_what_is_added_last_to_a_normalized_stream_is_codes_too() -> None:
    model = _model()
    model.graph.node[-1].CopyFrom(make_node("Add", "last stream", "y"))
    operators = Counter(operators_of(_emitted(model, equalized=True)))
    assert (operators["QLinearConv"], operators["MatMulIntegerToFloat"]) == (3, 0)


@pytest.mark.parametrize(
    ("between", "codes"),
    [("Div stream root", 2), ("Mul stream roots", 2), ("Mul stream below", 1), ("Sin stream", 1)],
)
def test_numbers_may_stand_before_a_normalization_and_functions_may_not(
    between: str, codes: int
) -> None:
    """Residual blocks with a style divide sums by the root of two."""
    model, (operator, inputs) = _model(), between.split(" ", 1)
    model.graph.node[5].input[0] = "between"
    model.graph.node.insert(5, make_node(operator, inputs, "between"))
    column = np.full((_CHANNELS, 1), 2**0.5, np.float32)
    for name, value in (("root", column[:1, 0]), ("roots", column), ("below", -column)):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    operators = Counter(operators_of(_emitted(model, equalized=True)))
    assert (operators["QLinearConv"], operators["MatMulIntegerToFloat"]) == (codes, 3 - codes)


def test_a_constant_that_sums_share_joins_no_streams() -> None:
    model = _model()
    model.graph.node[-1].CopyFrom(make_node("Add", "last first.b3", "y"))
    model.graph.node.insert(1, make_node("Add", "first first.b3", "more"))
    model.graph.node[2].input[0] = "more"
    value = np.ones((1, _CHANNELS, 1), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, "first.b3"))
    operators = Counter(operators_of(_emitted(model, equalized=True)))
    assert (operators["QLinearConv"], operators["MatMulIntegerToFloat"]) == (2, 1)


def test_a_normalized_sum_of_codes_is_one_of_real_numbers() -> None:
    model = _model()
    model.graph.node[4].input[1] = "first"
    operators = Counter(operators_of(_emitted(model, equalized=False)))
    assert (operators["QLinearConv"], operators["QLinearAdd"]) == (2, 0)


def test_without_a_normalization_results_are_real() -> None:
    operators = Counter(operators_of(_emitted(_model(normalized=False), equalized=True)))
    assert (operators["QLinearConv"], operators["MatMulIntegerToFloat"]) == (0, 3)


@pytest.mark.parametrize(("equalized", "least"), [(True, 30), (False, -10)])
def test_quiet_channels_keep_their_bits(*, equalized: bool, least: int) -> None:
    model = _model()
    small = _emitted(model, equalized=equalized)
    for tensor in ("n1", "n2"):
        (expected,), (found,) = run_model(model, _x(), tensor), run_model(small, _x(), tensor)
        worst = _snr(expected, found)
        assert worst > least
        assert equalized or worst < 20


def test_a_result_that_the_caller_reads_is_not_divided() -> None:
    model = _model()
    model.graph.output.append(helper.make_tensor_value_info("first", TensorProto.FLOAT, None))
    prepared = _prepared(model, equalized=True)
    expected, found = (run_model(m, _x(), "first")[0] for m in (model, prepared))
    assert np.array_equal(expected, found)


@pytest.mark.parametrize(
    ("operator", "numbers"), [("Mul", np.arange(1.0, 10.0)), ("Add", np.array([2.0]))]
)
def test_what_no_scale_of_a_channel_can_be_stays(operator: str, numbers: Any) -> None:
    """The harmonics of a pitch were taken for factors of its codes, and the graph failed."""
    nodes = [
        make_node("Conv", "x w", "pitch", pads=[1, 1]),
        make_node(operator, "pitch numbers", "pitches"),
        make_node("Sin", "pitches", "y"),
    ]
    values = {"w": np.full((1, 16, 3), 0.02), "numbers": numbers.reshape(1, -1, 1)}
    model = make_model(nodes, {"x": ["b", _CHANNELS, "t"]}, {"y": None}, values)
    integer = emitted(model, frozenset({"pitch"}), _x())
    expected, found = (run_model(m, _x())[0] for m in (model, integer))
    assert _snr(expected, found) > 30
