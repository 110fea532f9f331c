"""Sums become real where a stream ends, and where all of it is narrow; the others stay codes."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.onnx.integer.emitted import emitted
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import make_residuals_float

_NARROW, _WIDE = 16, 32
"""Channels of streams that become real altogether, and where they end."""


def _conv(output: str, source: str) -> onnx.NodeProto:
    name = f"/{output}/Conv"
    return make_node("Conv", f"{source} {output}.w", output, name, pads=[1, 1])


def _model(channels: int = _NARROW) -> onnx.ModelProto:
    """Two residual layers, whose streams are summed, and a last convolution that stays in FP32."""
    nodes = [
        _conv("first", "x"),
        make_node("LeakyRelu", "first", "first.act"),
        _conv("one", "first.act"),
        make_node("Add", "one first", "one.out"),
        make_node("LeakyRelu", "one.out", "one.act"),
        _conv("two", "one.act"),
        make_node("Add", "two one.out", "two.out"),
        _conv("three", "one.act"),
        make_node("Add", "three one.out", "three.out"),
        make_node("Add", "two.out three.out", "sum"),
        make_node("Mul", "sum half", "mean"),
        make_node("LeakyRelu", "mean", "last.act"),
        _conv("y", "last.act"),
    ]
    generator = np.random.default_rng(0)
    shape = (channels, channels, 3)
    names = ("first", "one", "two", "three", "y")
    weights = {f"{name}.w": generator.normal(0, 0.15, shape) for name in names}
    weights["half"] = np.array(0.5)
    return make_model(nodes, {"x": ["b", channels, "t"]}, {"y": None}, weights)


_PLAN = frozenset({"first", "one", "two", "three"})


def _run(model: onnx.ModelProto, length: int, *wanted: str) -> list[Any]:
    return run_model(model, _signal(model, length), *wanted)


def _signal(model: onnx.ModelProto, length: int) -> dict[str, Any]:
    """Return noise that is loud at the end, as speech is now and then."""
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(length).normal(size=(2, channels, length))
    x[..., length // 2 :] *= 20
    return {"x": x.astype(np.float32)}


def _made_float(model: onnx.ModelProto, plan: frozenset[str]) -> tuple[onnx.ModelProto, int]:
    graph = Graph(copy_model(model))
    made = make_residuals_float(graph, plan)
    return graph.model, made


def _emit(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its planned part on codes."""
    return emitted(model, _PLAN, _signal(model, 64))


@pytest.mark.parametrize("length", [1, 7, 32])
@pytest.mark.parametrize(("channels", "sums"), [(_NARROW, 2), (_WIDE, 1)])
def test_graph_computes_the_same(channels: int, sums: int, length: int) -> None:
    model = _model(channels)
    after, made = _made_float(model, _PLAN)
    assert made == sums
    (expected,), (found,) = _run(model, length), _run(after, length)
    assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("channels", "inner"), [(_NARROW, "Sum"), (_WIDE, "Add")])
@pytest.mark.parametrize("plan", [_PLAN, _PLAN | {"y"}])
def test_sums_are_merged_where_streams_end(channels: int, inner: str, plan: frozenset[str]) -> None:
    """A convolution behind the end that reads codes makes no difference."""
    after, _ = _made_float(_model(channels), plan)
    sums = {n.output[0]: n for n in after.graph.node if n.op_type in {"Add", "Sum"}}
    assert list(sums) == ["one.out", "sum"]
    assert sums["one.out"].op_type == inner
    assert list(sums["sum"].input) == ["two", "one.out", "three", "one.out"]


def test_part_of_a_sum_that_others_read_is_kept() -> None:
    model = _model(_WIDE)
    model.graph.output.append(helper.make_tensor_value_info("two.out", TensorProto.FLOAT, None))
    after, made = _made_float(model, _PLAN)
    assert made == 2
    for expected, found in zip(_run(model, 9), _run(after, 9), strict=True):
        assert np.allclose(expected, found, rtol=1e-5, atol=1e-4)


def test_what_a_wide_convolution_adds_is_a_code_of_its_own() -> None:
    """A product of copied neighbours, which returns real numbers, takes longer than QLinearConv."""
    kinds = {}
    for channels in (_NARROW, _WIDE):
        model = _emit(_made_float(_model(channels), _PLAN)[0])
        kinds[channels] = Counter(operators_of(model))
    assert kinds[_NARROW]["MatMulIntegerToFloat"] == 3
    assert kinds[_WIDE]["MatMulIntegerToFloat"] == 0


def test_less_noise_where_it_is_quiet() -> None:
    """A quarter of the noise of these four layers came from three sums."""

    def noise(model: onnx.ModelProto) -> float:
        difference = _run(_emit(model), 64)[0] - _run(_model(), 64)[0]
        return float(np.square(difference[..., :24]).mean())

    assert noise(_made_float(_model(), _PLAN)[0]) < 0.8 * noise(_model())
