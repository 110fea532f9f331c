"""Adaptive instance normalization in one operator: equal, or left alone."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_node, operators_of
from tests.onnx.rewrite.along_time import build, rewritten
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.rewrite.normalization import fold_affine


def _adaptive() -> list[onnx.NodeProto]:
    """Return a normalization whose factor follows from x, as it follows from a style elsewhere."""
    return [
        make_node("InstanceNormalization", "x scale shift", "n", epsilon=1e-3),
        make_node("ReduceMax", "x", "gamma", axes=[2], keepdims=1),
        make_node("Mul", "gamma n", "scaled"),
        make_node("Add", "scaled beta", "h"),
        make_node("Tanh", "h", "y"),
    ]


_WEIGHTS = {"scale": (4,), "shift": (4,), "beta": (1, 4, 1), "wide": (2, 4, 1), "one": (1, 1, 1)}


def _fold(graph: Graph) -> int:
    graph.infer_types()
    return fold_affine(graph)


@pytest.mark.parametrize("plain", [False, True])
def test_factor_and_offset_belong_to_the_normalization(*, plain: bool) -> None:
    neutral = {"scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
    model = build(_adaptive(), _WEIGHTS, neutral if plain else None, batch=1)
    after = rewritten(_fold, model)
    large = [node.op_type for node in after.graph.node if node.op_type in {"Mul", "Add"}]
    assert len(large) == (0 if plain else 3)  # of one number per channel


def test_a_factor_alone_is_folded() -> None:
    """An offset that is none of each channel stays a sum."""
    nodes = _adaptive()
    nodes[3] = make_node("Add", "scaled x", "h")
    assert "Add" in operators_of(rewritten(_fold, build(nodes, _WEIGHTS, batch=1)))
    nodes[3:] = [make_node("Tanh", "scaled", "y")]
    rewritten(_fold, build(nodes, _WEIGHTS, batch=1))


@pytest.mark.parametrize(
    ("place", "node"),
    [
        (1, make_node("Exp", "x", "gamma")),
        (1, make_node("Identity", "one", "gamma")),
        (1, make_node("Identity", "wide", "gamma")),
        (3, make_node("Add", "scaled n", "h")),
        (2, make_node("Div", "gamma n", "scaled")),
    ],
    ids=["over-time", "one-for-all", "two-texts", "read-twice", "division"],
)
def test_other_arithmetic_stays(place: int, node: onnx.NodeProto) -> None:
    nodes = _adaptive()
    nodes[place] = node
    assert _fold(Graph(build(nodes, _WEIGHTS, batch=1))) == 0


@pytest.mark.parametrize("name", ["n", "h"])
def test_what_the_caller_reads_stays(name: str) -> None:
    model = build(_adaptive(), _WEIGHTS, batch=1)
    model.graph.output.append(helper.make_tensor_value_info(name, 1, None))
    assert _fold(Graph(model)) == 0
