"""Normalization in one operator, and turns of axes that cancel: equal, or left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.normalization import cancel_transposes, fuse_normalization

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    Build = Callable[..., onnx.ModelProto]
    Equal = Callable[..., None]


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs, **attributes)


def _types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _normalized(axis: int = 1) -> list[onnx.NodeProto]:
    return [
        _node("ReduceMean", "x", "mean", axes=[axis]),
        _node("Sub", "x mean", "centred"),
        _node("Pow", "centred two", "squared"),
        _node("ReduceMean", "squared", "variance", axes=[axis]),
        _node("Add", "variance epsilon", "above"),
        _node("Sqrt", "above", "deviation"),
        _node("Div", "centred deviation", "normal"),
        _node("Mul", "normal scale", "scaled"),
        _node("Add", "scaled shift", "h"),
        _node("Relu", "h", "y"),
    ]


_SCALARS = {"two": np.array(2, np.float32), "epsilon": np.array(1e-5, np.float32)}
_CHANNELS = {"scale": (1, 4, 1), "shift": (1, 4, 1)}


def test_normalization_is_one_operator(build: Build, equal: Equal) -> None:
    model = build(_normalized(), _CHANNELS, _SCALARS)
    graph = Graph(copy_model(model))
    assert fuse_normalization(graph) == 1
    after = graph.finish()
    assert _types(after) == ["Transpose", "LayerNormalization", "Transpose", "Relu"]
    assert after.opset_import[0].version == 17
    equal(model, after)


def test_a_square_may_be_a_product(build: Build, equal: Equal) -> None:
    nodes = _normalized()
    nodes[2] = _node("Mul", "centred centred", "squared")
    model = build(nodes, _CHANNELS, _SCALARS)
    graph = Graph(copy_model(model))
    assert fuse_normalization(graph) == 1
    equal(model, graph.finish())


@pytest.mark.parametrize(
    ("place", "node"),
    [
        (0, _node("ReduceMean", "x", "mean", axes=[2])),
        (2, _node("Pow", "centred three", "squared")),
        (2, _node("Mul", "centred x", "squared")),
        (6, _node("Div", "x deviation", "normal")),
        (7, _node("Mul", "normal half", "scaled")),
    ],
    ids=["over-time", "cubes", "not-a-square", "not-centred", "one-scale"],
)
def test_other_arithmetic_stays(build: Build, place: int, node: onnx.NodeProto) -> None:
    nodes = _normalized()
    nodes[place] = node
    others = {"three": np.array(3, np.float32), "half": np.array(0.5, np.float32)}
    assert fuse_normalization(Graph(build(nodes, _CHANNELS, _SCALARS | others))) == 0


def test_an_old_operator_set_stays(build: Build) -> None:
    model = build(_normalized(), _CHANNELS, _SCALARS)
    model.opset_import[0].version = 12
    assert fuse_normalization(Graph(copy_model(model))) == 0


def _turned(perm: list[int]) -> list[onnx.NodeProto]:
    return [
        _node("Transpose", "x", "a", perm=[0, 2, 1]),
        _node("Relu", "a", "b"),
        _node("Mul", "b half", "c"),
        _node("Add", "c a", "d"),
        _node("Transpose", "d", "e", perm=perm),
        _node("Tanh", "e", "y"),
    ]


_HALF = {"half": np.array(0.5, np.float32)}


def test_turns_that_meet_are_taken_out(build: Build, equal: Equal) -> None:
    model = build(_turned([0, 2, 1]), {}, _HALF)
    graph = Graph(copy_model(model))
    assert cancel_transposes(graph) == 1
    after = graph.finish()
    assert _types(after) == ["Relu", "Mul", "Add", "Tanh"]
    assert len({node.name for node in after.graph.node}) == 4
    equal(model, after)


def test_both_forms_can_be_read(build: Build, equal: Equal) -> None:
    nodes = [*_turned([0, 2, 1])[:-1], _node("Softmax", "d", "s", axis=1)]
    nodes += [_node("Transpose", "s", "t", perm=[0, 2, 1]), _node("Add", "t e", "y")]
    model = build(nodes, {}, _HALF)
    graph = Graph(copy_model(model))
    assert cancel_transposes(graph) == 1
    equal(model, graph.finish())


def test_other_turns_stay(build: Build) -> None:
    assert cancel_transposes(Graph(build(_turned([1, 0, 2]), {}, _HALF))) == 0


def test_what_is_done_by_channel_stays(build: Build, equal: Equal) -> None:
    """A factor for each channel would have to be turned along."""
    nodes = _turned([0, 2, 1])
    nodes[2] = _node("Mul", "b scale", "c")
    model = build(nodes, {"scale": (1, 1, 4)})
    graph = Graph(copy_model(model))
    assert cancel_transposes(graph) == 0
    equal(model, graph.finish())
