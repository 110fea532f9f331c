"""Operators that decide durations, by where lengths come from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_body, make_model, make_node
from tts_compress.onnx.precision import duration_outputs, length_outputs, rounded_durations

_FLAG: Any = (TensorProto.BOOL, [])
_COUNT: Any = (TensorProto.INT64, [])
_PREDICTED = [make_node("MatMul", "x w", "d"), make_node("Ceil", "d", "c")]
_WHOLE = [*_PREDICTED, make_node("Cast", "c", "n", to=TensorProto.INT64)]
_ENCODED = make_node("MatMul", "x v", "h")


def _branch(source: str) -> onnx.GraphProto:
    """Return a branch whose tensors bear the names of those of any other."""
    nodes = [make_node("Relu", source, "inner"), make_node("Neg", "inner", "end")]
    return make_body(nodes, {}, {"end": None})


def _loop(count: str, carried: str, output: str, read: str) -> onnx.NodeProto:
    """Return a loop that adds what it carried to a sum, and carries a tensor from outside on."""
    nodes = [
        make_node("Identity", "on", "goes_on"),
        make_node("Add", "before carried", "after"),
        make_node("Neg", read, "carry"),
    ]
    inputs = {"i": _COUNT, "on": _FLAG, "before": None, "carried": None}
    body = make_body(nodes, inputs, {"goes_on": _FLAG, "after": None, "carry": None})
    return make_node("Loop", f"{count} - {carried} {carried}", f"{output} -", body=body)


def _scan(source: str) -> onnx.NodeProto:
    body = make_body([make_node("Neg", "step", "made")], {"step": None}, {"made": None})
    return make_node("Scan", source, "s", body=body, num_scan_inputs=1)


_CASES: dict[str, tuple[Sequence[onnx.NodeProto], str]] = {
    "frames repeated": ([*_WHOLE, _ENCODED, make_node("Expand", "h n", "y")], "d c n"),
    "an encoder of both": (
        [_ENCODED, make_node("MatMul", "h w", "d"), *_WHOLE[1:], make_node("Expand", "h n", "y")],
        "d c n",
    ),
    "a loop's rounds": ([*_WHOLE, _ENCODED, _loop("n", "h", "y", "x")], "d c n"),
    "a shape alone": (
        [*_PREDICTED, make_node("Shape", "c", "n"), make_node("Expand", "x n", "y")],
        "",
    ),
    "the caller's length": ([_ENCODED, make_node("Expand", "h stated", "y")], ""),
    "real durations heard": (
        [*_WHOLE, make_node("Expand", "x n", "e"), make_node("Mul", "e d", "y")],
        "c n",
    ),
    "a path of sums": (
        [
            _PREDICTED[0],
            make_node("Cast", "d", "c", to=TensorProto.INT64),
            make_node("Reshape", "c stated", "r"),
            make_node("CumSum", "r zero", "ends"),
            make_node("Less", "x ends", "mask"),
            make_node("Where", "mask x zero", "y"),
        ],
        "d",
    ),
    "a phase of sums": (
        [
            make_node("Floor", "x", "f"),
            make_node("MatMul", "f w", "m"),
            make_node("CumSum", "m zero", "y"),
        ],
        "",
    ),
    "parts of turns": (
        [
            make_node("MatMul", "x w", "m"),
            make_node("Floor", "m", "f"),
            make_node("Sub", "m f", "part"),
            make_node("CumSum", "part zero", "y"),
        ],
        "",
    ),
    "branches": (
        [
            *(make_node("MatMul", f"x {w}", a) for w, a in (("w", "a"), ("v", "b"))),
            make_node("If", "yes", "e", then_branch=_branch("a"), else_branch=_branch("b")),
            make_node("Round", "e", "n"),
            make_node("Expand", "x n", "y"),
        ],
        "a b inner end e n",
    ),
    "a loop's sum": (
        [*_PREDICTED, _ENCODED, _loop("stated", "c", "s", "h"), make_node("Expand", "x s", "y")],
        "d c h after carry s",
    ),
    "a scan's results": (
        [*_PREDICTED, _scan("c"), make_node("Expand", "x s", "y")],
        "d c made s",
    ),
}


def _model(nodes: Sequence[onnx.NodeProto], *outputs: str) -> onnx.ModelProto:
    weights = {"w": np.ones((4, 4)), "v": np.ones((4, 4)), "zero": np.array(0)}
    inputs = {"x": [4, 4], "stated": _COUNT, "yes": _FLAG}
    return make_model(nodes, inputs, dict.fromkeys(outputs), weights)


@pytest.mark.parametrize("case", _CASES)
def test_what_lengths_are_made_of_decides_them(case: str) -> None:
    """Layers that are heard in another way, too, are not; a graph may return durations."""
    nodes, deciding = _CASES[case]
    for outputs in (["y"], ["y", "d"]) if "d" in deciding.split() else (["y"],):
        assert duration_outputs(_model(nodes, *outputs)) == {*deciding.split()}


def test_durations_may_be_used_outside_the_graph() -> None:
    """An encoder that a sound is made of, too, only takes part."""
    nodes = [_ENCODED, make_node("MatMul", "h w", "d"), make_node("Relu", "h", "y")]
    assert duration_outputs(_model(nodes, "y", "d"), ["d"]) == {"d"}
    assert length_outputs(_model(nodes, "y", "d"), ["d"]) == {"h", "d"}
    for other in (nodes, _CASES["a phase of sums"][0]):
        assert not length_outputs(_model(other, "y"))


def test_durations_are_made_whole_once() -> None:
    """Rounding of what is heard is none of durations."""
    nodes = [*_CASES["frames repeated"][0], make_node("Round", "y", "z")]
    assert [node.op_type for node in rounded_durations(_model(nodes, "z"))] == ["Ceil"]
