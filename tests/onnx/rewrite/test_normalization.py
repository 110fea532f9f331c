"""Adaptive instance normalization in one operator: equal, or left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.normalization import fold_affine

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    Build = Callable[..., onnx.ModelProto]
    Equal = Callable[..., None]


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs, **attributes)


def _adaptive() -> list[onnx.NodeProto]:
    """Return a normalization whose factor follows from x, as it follows from a style elsewhere."""
    return [
        _node("InstanceNormalization", "x scale shift", "n", epsilon=1e-3),
        _node("ReduceMax", "x", "gamma", axes=[2], keepdims=1),
        _node("Mul", "gamma n", "scaled"),
        _node("Add", "scaled beta", "h"),
        _node("Tanh", "h", "y"),
    ]


_WEIGHTS = {"scale": (4,), "shift": (4,), "beta": (1, 4, 1), "wide": (2, 4, 1), "one": (1, 1, 1)}


def _folded(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    graph = Graph(copy_model(model))
    graph.infer_types()
    count = fold_affine(graph)
    return graph.finish(), count


@pytest.mark.parametrize("plain", [False, True])
def test_factor_and_offset_belong_to_the_normalization(
    build: Build, equal: Equal, *, plain: bool
) -> None:
    neutral = {"scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
    model = build(_adaptive(), _WEIGHTS, neutral if plain else None, batch=1)
    after, count = _folded(model)
    assert count == 1
    large = [node.op_type for node in after.graph.node if node.op_type in {"Mul", "Add"}]
    assert len(large) == (0 if plain else 3)  # of one number per channel
    equal(model, after)


def test_a_factor_alone_is_folded(build: Build, equal: Equal) -> None:
    nodes = [node for node in _adaptive() if node.op_type != "Add"]
    nodes[-1] = _node("Tanh", "scaled", "y")
    model = build(nodes, _WEIGHTS, batch=1)
    after, count = _folded(model)
    assert count == 1
    equal(model, after)


def test_an_offset_that_is_none_per_channel_stays_a_sum(build: Build, equal: Equal) -> None:
    nodes = _adaptive()
    nodes[3] = _node("Add", "scaled x", "h")
    model = build(nodes, _WEIGHTS, batch=1)
    after, count = _folded(model)
    assert count == 1
    assert "Add" in {node.op_type for node in after.graph.node}
    equal(model, after)


@pytest.mark.parametrize(
    ("place", "node"),
    [
        (1, _node("Exp", "x", "gamma")),
        (1, _node("Identity", "one", "gamma")),
        (1, _node("Identity", "wide", "gamma")),
        (3, _node("Add", "scaled n", "h")),
        (2, _node("Div", "gamma n", "scaled")),
    ],
    ids=["over-time", "one-for-all", "two-texts", "read-twice", "division"],
)
def test_other_arithmetic_stays(build: Build, place: int, node: onnx.NodeProto) -> None:
    nodes = _adaptive()
    nodes[place] = node
    assert _folded(build(nodes, _WEIGHTS, batch=1))[1] == 0


def test_what_the_caller_reads_stays(build: Build) -> None:
    model = build(_adaptive(), _WEIGHTS, batch=1)
    model.graph.output.append(helper.make_tensor_value_info("n", 1, None))
    assert _folded(model)[1] == 0
