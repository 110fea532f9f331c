"""Snake activations in fewer passes: equal, or left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.curves import simplify_snakes

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    Build = Callable[..., onnx.ModelProto]
    Equal = Callable[..., None]


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs, **attributes)


def _snake() -> list[onnx.NodeProto]:
    return [
        _node("Mul", "alpha x", "phase"),
        _node("Sin", "phase", "wave"),
        _node("Pow", "wave two", "square"),
        _node("Mul", "share square", "part"),
        _node("Add", "x part", "h"),
        _node("Neg", "h", "y"),
    ]


_ALPHA: np.ndarray = np.array([0.3, 1, 4, 12], np.float32).reshape(1, 4, 1)
_VALUES: dict[str, np.ndarray] = {
    "alpha": _ALPHA,
    "share": 1 / _ALPHA,
    "two": np.array(2, np.float32),
}


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(
    "square", [_node("Pow", "wave two", "square"), _node("Mul", "wave wave", "square")]
)
def test_snake_is_a_cosine(build: Build, equal: Equal, square: onnx.NodeProto, rank: int) -> None:
    nodes = _snake()
    nodes[2] = square
    values = {
        name: value[0] if rank == 2 and value.ndim else value for name, value in _VALUES.items()
    }
    model = build(nodes, {}, values)
    graph = Graph(copy_model(model))
    assert simplify_snakes(graph) == 1
    after = graph.finish()
    assert [node.op_type for node in after.graph.node] == [
        *("Mul", "Cos", "BatchNormalization", "Add", "Neg")
    ]
    equal(model, after)


@pytest.mark.parametrize(
    ("place", "node"),
    [
        (0, _node("Mul", "alpha lowered", "phase")),
        (1, _node("Cos", "phase", "wave")),
        (2, _node("Pow", "wave three", "square")),
        (2, _node("Pow", "wave x", "square")),
        (2, _node("Mul", "wave x", "square")),
        (3, _node("Mul", "times square", "part")),
        (4, _node("Add", "lowered part", "h")),
    ],
    ids=["another-phase", "cosine", "cube", "power", "no-square", "over-time", "another-stream"],
)
def test_other_arithmetic_stays(build: Build, place: int, node: onnx.NodeProto) -> None:
    nodes = [*_snake(), _node("Relu", "x", "lowered"), _node("Exp", "x", "times")]
    nodes[place] = node
    model = build(nodes, {}, _VALUES | {"three": np.array(3, np.float32)})
    assert simplify_snakes(Graph(copy_model(model))) == 0


def test_a_wave_as_long_as_rounding_errors_are_large_stays(build: Build) -> None:
    values = _VALUES | {"alpha": _ALPHA / 100, "share": 100 / _ALPHA}
    assert simplify_snakes(Graph(copy_model(build(_snake(), {}, values)))) == 0


def test_one_factor_for_all_channels_stays(build: Build) -> None:
    values = _VALUES | {"alpha": np.array(2, np.float32), "share": np.array(0.5, np.float32)}
    assert simplify_snakes(Graph(copy_model(build(_snake(), {}, values)))) == 0
