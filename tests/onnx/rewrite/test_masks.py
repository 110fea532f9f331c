"""Masks are dropped where one utterance makes them all ones, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.eliminate_identity import drop_masks, single_utterance

if TYPE_CHECKING:
    from collections.abc import Callable

    Build = Callable[..., onnx.ModelProto]
    Equal = Callable[..., None]

_CONSTANTS = {
    "zero": np.array(0, np.int64),
    "one": np.array(1, np.int64),
    "two": np.array(2, np.int64),
    "first": np.array([0], np.int64),
    "second": np.array([1], np.int64),
    "nothing": np.array(0, np.float32),
    "low": np.array(-1e4, np.float32),
}


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs, **attributes)


def _mask(longest: str) -> list[onnx.NodeProto]:
    """Return the nodes of a mask (B, 1, frames), as torch exports it."""
    return [
        _node("Shape", "x", "shape"),
        _node("Gather", "shape two", "frames", axis=0),
        _node("ReduceMax", "lengths", "most", keepdims=0),
        _node("Range", f"zero {longest} one", "numbers"),
        _node("Unsqueeze", "numbers first", "row"),
        _node("Unsqueeze", "lengths second", "column"),
        _node("Less", "row column", "valid"),
        _node("Unsqueeze", "valid second", "valid3"),
        _node("Cast", "valid3", "mask", to=TensorProto.FLOAT),
    ]


def _masked(longest: str) -> list[onnx.NodeProto]:
    return [*_mask(longest), _node("Mul", "x mask", "m"), _node("Tanh", "m", "y")]


@pytest.mark.parametrize("longest", ["most", "frames"])
def test_masks_of_one_utterance_are_dropped(build: Build, equal: Equal, longest: str) -> None:
    model = build(_masked(longest), {}, _CONSTANTS)
    graph = Graph(copy_model(model))
    assert single_utterance(graph) == 2
    assert drop_masks(graph) == 1
    after = graph.finish()
    assert [node.op_type for node in after.graph.node] == ["Tanh"]
    equal(model, after)


def test_masked_attention_is_freed(build: Build, equal: Equal) -> None:
    nodes = [
        *_mask("most"),
        _node("Unsqueeze", "mask two", "across"),
        _node("Unsqueeze", "mask last", "down"),
        _node("Mul", "across down", "square"),
        _node("Equal", "square nothing", "hidden"),
        _node("Unsqueeze", "x second", "keys"),
        _node("Transpose", "keys", "queries", perm=[0, 1, 3, 2]),
        _node("MatMul", "queries keys", "scores"),
        _node("Where", "hidden low scores", "kept"),
        _node("Softmax", "kept", "y", axis=-1),
    ]
    constants = _CONSTANTS | {"two": np.array([2], np.int64), "last": np.array([3], np.int64)}
    nodes = [node for node in nodes if node.output[0] not in {"shape", "frames"}]
    model = build(nodes, {}, constants)
    graph = Graph(copy_model(model))
    single_utterance(graph)
    assert drop_masks(graph) == 1
    equal(model, graph.finish())


def test_several_utterances_keep_their_masks(build: Build, run: Callable[..., Any]) -> None:
    model = build(_masked("most"), {}, _CONSTANTS)
    graph = Graph(copy_model(model))
    assert drop_masks(graph) == 0
    assert np.array_equal(run(graph.finish(), 7, batch=2), run(model, 7, batch=2))


def test_a_mask_of_some_frames_stays(build: Build) -> None:
    """Numbers from one, or a comparison with other lengths, are no mask of valid frames."""
    for change in ("Range", "Less"):
        nodes = _masked("most")
        (node,) = [node for node in nodes if node.op_type == change]
        node.input[0] = "one" if change == "Range" else "column"
        assert drop_masks(Graph(build(nodes, {}, _CONSTANTS, batch=1))) == 0
