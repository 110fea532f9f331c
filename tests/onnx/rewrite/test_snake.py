"""Snake activations in fewer passes: equal, or left alone."""

import numpy as np
import onnx
import pytest

from tests.graphs import make_body, make_node
from tests.onnx.rewrite.along_time import build, rewritten
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.curves import simplify_snakes


def _snake() -> list[onnx.NodeProto]:
    return [
        make_node("Mul", "alpha x", "phase"),
        make_node("Sin", "phase", "wave"),
        make_node("Pow", "wave two", "square"),
        make_node("Mul", "share square", "part"),
        make_node("Add", "x part", "h"),
        make_node("Neg", "h", "y"),
    ]


_ALPHA: np.ndarray = np.array([0.3, 1, 4, 12], np.float32).reshape(1, 4, 1)
_VALUES: dict[str, np.ndarray] = {
    "alpha": _ALPHA,
    "share": 1 / _ALPHA,
    "two": np.array(2, np.float32),
}


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(
    "square", [make_node("Pow", "wave two", "square"), make_node("Mul", "wave wave", "square")]
)
@pytest.mark.parametrize("phase", ["alpha x", "x alpha"])
def test_snake_is_a_cosine(phase: str, square: onnx.NodeProto, rank: int) -> None:
    nodes = _snake()
    nodes[0], nodes[2] = make_node("Mul", phase, "phase"), square
    values = {
        name: value[0] if rank == 2 and value.ndim else value for name, value in _VALUES.items()
    }
    after = rewritten(simplify_snakes, build(nodes, {}, values))
    assert [node.op_type for node in after.graph.node] == [
        *("Mul", "Cos", "BatchNormalization", "Add", "Neg")
    ]


@pytest.mark.parametrize(
    ("place", "node"),
    [
        (0, make_node("Mul", "alpha lowered", "phase")),
        (1, make_node("Cos", "phase", "wave")),
        (2, make_node("Pow", "wave three", "square")),
        (2, make_node("Pow", "wave x", "square")),
        (2, make_node("Mul", "wave x", "square")),
        (3, make_node("Mul", "times square", "part")),
        (4, make_node("Add", "lowered part", "h")),
    ],
    ids=["another-phase", "cosine", "cube", "power", "no-square", "over-time", "another-stream"],
)
def test_other_arithmetic_stays(place: int, node: onnx.NodeProto) -> None:
    nodes = [*_snake(), make_node("Relu", "x", "lowered"), make_node("Exp", "x", "times")]
    nodes[place] = node
    model = build(nodes, {}, _VALUES | {"three": np.array(3, np.float32)})
    assert simplify_snakes(Graph(copy_model(model))) == 0


@pytest.mark.parametrize(
    ("alpha", "share"),
    [
        (_ALPHA / 100, 100 / _ALPHA),
        (np.array(2, np.float32), np.array(0.5, np.float32)),
        # A `BatchNormalization` of one channel met four, which the runtime refused.
        (_ALPHA[:, :1], 1 / _ALPHA[:, :1]),
    ],
    ids=["as long as rounding errors are large", "a number", "a number that has axes"],
)
def test_waves_of_other_factors_stay(alpha: np.ndarray, share: np.ndarray) -> None:
    values = _VALUES | {"alpha": alpha, "share": share}
    assert simplify_snakes(Graph(copy_model(build(_snake(), {}, values)))) == 0


@pytest.mark.parametrize("shape", [[4, "time"], [1, 2, 4, "time"]])
def test_snakes_of_other_axes_stay(shape: list[int | str]) -> None:
    values = {name: value[0] if value.ndim else value for name, value in _VALUES.items()}
    model = build(_snake(), {}, values)
    model.graph.input[0].CopyFrom(make_body([], {"x": shape}, {}).input[0])
    assert simplify_snakes(Graph(model)) == 0
