"""Normalization in one operator, and turns of axes that cancel: equal, or left alone."""

import numpy as np
import onnx
import pytest

from tests.graphs import make_node, operators_of
from tests.onnx.rewrite.along_time import build, rewritten
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.normalization import cancel_transposes, fuse_normalization


def _normalized(axis: int = 1) -> list[onnx.NodeProto]:
    return [
        make_node("ReduceMean", "x", "mean", axes=[axis]),
        make_node("Sub", "x mean", "centred"),
        make_node("Pow", "centred two", "squared"),
        make_node("ReduceMean", "squared", "variance", axes=[axis]),
        make_node("Add", "variance epsilon", "above"),
        make_node("Sqrt", "above", "deviation"),
        make_node("Div", "centred deviation", "normal"),
        make_node("Mul", "normal scale", "scaled"),
        make_node("Add", "scaled shift", "h"),
        make_node("Relu", "h", "y"),
    ]


_SCALARS = {"two": np.array(2, np.float32), "epsilon": np.array(1e-5, np.float32)}
_CHANNELS = {"scale": (1, 4, 1), "shift": (1, 4, 1)}


@pytest.mark.parametrize(
    "square",
    [make_node("Pow", "centred two", "squared"), make_node("Mul", "centred centred", "squared")],
)
def test_normalization_is_one_operator(square: onnx.NodeProto) -> None:
    nodes = _normalized()
    nodes[2] = square
    after = rewritten(fuse_normalization, build(nodes, _CHANNELS, _SCALARS))
    assert operators_of(after) == ["Transpose", "LayerNormalization", "Transpose", "Relu"]
    assert after.opset_import[0].version == 17


@pytest.mark.parametrize(
    ("place", "node"),
    [
        (0, make_node("ReduceMean", "x", "mean", axes=[2])),
        (0, make_node("ReduceMax", "x", "mean", axes=[1])),
        (3, make_node("ReduceMean", "squared", "variance", axes=[1], keepdims=0)),
        (4, make_node("Add", "variance x", "above")),
        (8, make_node("Add", "scaled x", "h")),
        (8, make_node("Add", "scaled few", "h")),
        (2, make_node("Pow", "x two", "squared")),
        (2, make_node("Pow", "centred three", "squared")),
        (2, make_node("Mul", "centred x", "squared")),
        (6, make_node("Div", "x deviation", "normal")),
        (7, make_node("Mul", "normal half", "scaled")),
    ],
    ids=[
        *("over-time", "largest", "without-axis", "no-epsilon", "no-shift", "two-shifts"),
        *("of-x", "cubes", "not-a-square", "not-centred", "one-scale"),
    ],
)
def test_other_arithmetic_stays(place: int, node: onnx.NodeProto) -> None:
    nodes = _normalized()
    nodes[place] = node
    others = {"three": np.array(3, np.float32), "half": np.array(0.5, np.float32)}
    others["few"] = np.ones((1, 2, 1), np.float32)
    assert fuse_normalization(Graph(build(nodes, _CHANNELS, _SCALARS | others))) == 0


def test_an_old_operator_set_stays_and_what_the_caller_reads() -> None:
    model = build(_normalized(), _CHANNELS, _SCALARS)
    model.opset_import[0].version = 12
    assert fuse_normalization(Graph(copy_model(model))) == 0
    model = build(_normalized(), _CHANNELS, _SCALARS)
    model.graph.output[0].name = "h"
    assert fuse_normalization(Graph(model)) == 0


def _turned(perm: list[int]) -> list[onnx.NodeProto]:
    return [
        make_node("Transpose", "x", "a", perm=[0, 2, 1]),
        make_node("Relu", "a", "b"),
        make_node("Mul", "b half", "c"),
        make_node("Add", "c a", "d"),
        make_node("Transpose", "d", "e", perm=perm),
        make_node("Tanh", "e", "y"),
    ]


_HALF = {"half": np.array(0.5, np.float32)}


def test_turns_that_meet_are_taken_out() -> None:
    after = rewritten(cancel_transposes, build(_turned([0, 2, 1]), {}, _HALF))
    assert operators_of(after) == ["Relu", "Mul", "Add", "Tanh"]
    assert len({node.name for node in after.graph.node}) == 4


def test_both_forms_can_be_read() -> None:
    nodes = [*_turned([0, 2, 1])[:-1], make_node("Softmax", "d", "s", axis=1)]
    nodes += [make_node("Transpose", "s", "t", perm=[0, 2, 1]), make_node("Add", "t e", "y")]
    rewritten(cancel_transposes, build(nodes, {}, _HALF))


def test_other_turns_stay() -> None:
    """A factor for each channel would have to be turned along."""
    assert cancel_transposes(Graph(build(_turned([1, 0, 2]), {}, _HALF))) == 0
    nodes = _turned([0, 2, 1])
    nodes[2] = make_node("Mul", "b scale", "c")
    rewritten(cancel_transposes, build(nodes, {"scale": (1, 1, 4)}), 0)


def test_a_number_that_adds_an_axis_stays_behind_the_turn() -> None:
    nodes = [make_node("Transpose", "x", "t", perm=[0, 2, 1]), make_node("Mul", "t number", "m")]
    graph = Graph(build([*nodes, make_node("Neg", "m", "y")], {"number": (1, 1, 1, 1)}))
    cancel_transposes(graph)
    assert operators_of(graph.finish()) == ["Transpose", "Mul", "Neg"]
