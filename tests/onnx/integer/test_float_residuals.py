"""Sums become real where a stream ends, and where all of it is narrow; the others stay codes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import emit_integer, make_residuals_float, observed_tensors

_NARROW, _WIDE = 16, 32
"""Channels of streams that become real altogether, and where they end."""


def _conv(output: str, source: str) -> onnx.NodeProto:
    name = f"/{output}/Conv"
    return helper.make_node("Conv", [source, f"{output}.w"], [output], name, pads=[1, 1])


def _node(op: str, inputs: str, output: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], f"/{output}/{op}")


def _model(channels: int = _NARROW) -> onnx.ModelProto:
    """Two residual layers, whose streams are summed, and a last convolution that stays in FP32."""
    nodes = [
        _conv("first", "x"),
        _node("LeakyRelu", "first", "first.act"),
        _conv("one", "first.act"),
        _node("Add", "one first", "one.out"),
        _node("LeakyRelu", "one.out", "one.act"),
        _conv("two", "one.act"),
        _node("Add", "two one.out", "two.out"),
        _conv("three", "one.act"),
        _node("Add", "three one.out", "three.out"),
        _node("Add", "two.out three.out", "sum"),
        _node("Mul", "sum half", "mean"),
        _node("LeakyRelu", "mean", "last.act"),
        _conv("y", "last.act"),
    ]
    generator = np.random.default_rng(0)
    shape = (channels, channels, 3)
    names = ("first", "one", "two", "three", "y")
    weights = {f"{name}.w": generator.normal(0, 0.15, shape) for name in names}
    weights["half"] = np.array(0.5)
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", channels, "t"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


_PLAN = frozenset({"first", "one", "two", "three"})


def _run(model: onnx.ModelProto, length: int, wanted: tuple[str, ...] = ("y",)) -> list[Any]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted
    )
    session = onnxruntime.InferenceSession(
        copy.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    # Loud at the end, as speech is now and then.
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(length).normal(size=(2, channels, length))
    x[..., length // 2 :] *= 20
    return list(session.run(None, {"x": x.astype(np.float32)}))


def _made_float(model: onnx.ModelProto, plan: frozenset[str]) -> tuple[onnx.ModelProto, int]:
    graph = Graph(copy_model(model))
    made = make_residuals_float(graph, plan)
    return graph.model, made


def _emit(model: onnx.ModelProto, length: int) -> onnx.ModelProto:
    """Return a model with its planned part on codes, calibrated on a call."""
    names = tuple(observed_tensors(model, _PLAN))
    seen = zip(names, _run(model, length, names), strict=True)
    graph = Graph(model)
    emit_integer(graph, _PLAN, {name: (float(v.min()), float(v.max())) for name, v in seen})
    return graph.model


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
    wanted = ("y", "two.out")
    for expected, found in zip(_run(model, 9, wanted), _run(after, 9, wanted), strict=True):
        assert np.allclose(expected, found, rtol=1e-5, atol=1e-4)


def test_what_a_wide_convolution_adds_is_a_code_of_its_own() -> None:
    """A product of copied neighbours, which returns real numbers, takes longer than QLinearConv."""
    kinds = {}
    for channels in (_NARROW, _WIDE):
        model = _made_float(_model(channels), _PLAN)[0]
        _emit(model, 64)
        kinds[channels] = Counter(node.op_type for node in model.graph.node)
    assert kinds[_NARROW]["MatMulIntegerToFloat"] == 3
    assert kinds[_WIDE]["MatMulIntegerToFloat"] == 0


def test_less_noise_where_it_is_quiet() -> None:
    """A quarter of the noise of these four layers came from three sums."""

    def noise(model: onnx.ModelProto) -> float:
        difference = _run(_emit(model, 64), 64)[0] - _run(_model(), 64)[0]
        return float(np.square(difference[..., :24]).mean())

    assert noise(_made_float(_model(), _PLAN)[0]) < 0.8 * noise(_model())
