"""Attention and splines of a voice: replaced where equal, left alone where anything differs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_node
from tests.onnx.rewrite.along_time import build
from tts_compress.models.base import GraphModel
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.onnx.receptive import observe_shapes
from tts_compress.onnx.rewrite.attention import simplify_attention
from tts_compress.onnx.rewrite.curves import simplify_splines
from tts_compress.onnx.rewrite.eliminate_identity import drop_masks, single_utterance
from tts_compress.onnx.rewrite.verified_replace import verified_replace
from tts_compress.onnx.tensor import Tensor


@pytest.fixture(scope="module")
def prepared(tiny: GraphModel) -> onnx.ModelProto:
    """Return a tiny voice for one utterance, masks dropped: a layer of attention, a spline."""
    graph = Graph(prepare(tiny.graph()))
    single_utterance(graph)
    drop_masks(graph)
    graph.sweep()
    return graph.finish()


def _durations(model: onnx.ModelProto, name: str, lengths: Sequence[int]) -> list[np.ndarray]:
    """Return a tensor of a voice that speaks so many ids; its noise is wide, for both tails."""
    tapped = copy_model(model)
    tapped.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    for node in tapped.graph.node:
        if node.op_type == "RandomNormalLike":
            node.attribute.append(helper.make_attribute("seed", 1.0))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    content = tapped.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [np.asarray(session.run([name], _feeds(ids))[0]) for ids in lengths]


def _feeds(ids: int) -> dict[str, np.ndarray]:
    return {
        "input": np.random.default_rng(ids).integers(1, 100, (1, ids)),
        "input_lengths": np.array([ids], np.int64),
        "scales": np.array([0, 1, 3], np.float32),
    }


def _check_durations(
    before: onnx.ModelProto, after: onnx.ModelProto, lengths: Sequence[int]
) -> None:
    name = next(n.input[0] for n in after.graph.node if n.op_type == "Ceil")
    runs = (_durations(model, name, lengths) for model in (before, after))
    for expected, found in zip(*runs, strict=True):
        assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max(), expected.shape


@pytest.mark.slow
def test_attention_is_equal_at_every_length(prepared: onnx.ModelProto) -> None:
    """Shorter than the window of nine, as long, longer."""
    graph = Graph(copy_model(prepared))
    assert simplify_attention(graph) == 1
    assert not simplify_attention(graph)  # there is nothing left to be done
    after = graph.finish()
    assert len(after.graph.node) < len(prepared.graph.node) - 50
    _check_durations(prepared, after, (1, 4, 5, 7, 31))
    shapes = observe_shapes(after, [_feeds(7), _feeds(31)], "voice").values()
    assert sum(long[-2:] == (31, 31) for _, long in shapes) == 3  # products, scores, shares


def test_splines_are_equal_on_and_beyond_the_interval(prepared: onnx.ModelProto) -> None:
    graph = Graph(copy_model(prepared))
    assert simplify_splines(graph) == 1
    after = graph.finish()
    assert not {"ScatterND", "NonZero", "GatherND"} & {n.op_type for n in after.graph.node}
    _check_durations(prepared, after, (1, 7, 31))


def _changed(
    model: onnx.ModelProto, change: Callable[[onnx.NodeProto, dict[str, Any]], bool]
) -> onnx.ModelProto:
    """Return a copy in which the first node that a change accepts has been changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = {t.name: numpy_helper.to_array(t) for t in copy.graph.initializer}
    assert any(change(node, constants) for node in copy.graph.node)
    del copy.graph.initializer[:]
    tensors = (numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items())
    copy.graph.initializer.extend(tensors)
    return copy


def _replace_constant(
    node: onnx.NodeProto, position: int, value: np.ndarray, constants: dict[str, Any]
) -> bool:
    name = f"{node.output[0]}.changed"
    constants[name] = value
    node.input[position] = name
    return True


def _other_axis(node: onnx.NodeProto, _: dict[str, Any]) -> bool:
    if node.op_type != "Softmax" or "attn" not in node.output[0]:
        return False
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("axis", 2))
    return True


def _other_scale(node: onnx.NodeProto, constants: dict[str, Any]) -> bool:
    scalar = node.op_type == "Div" and constants.get(node.input[1], np.zeros(2)).size == 1
    if not scalar or "attn" not in node.output[0]:
        return False
    return _replace_constant(node, 1, np.array(3.0, np.float32), constants)


def _other_slope(node: onnx.NodeProto, constants: dict[str, Any]) -> bool:
    if node.op_type != "Add" or "Softplus" not in node.input[0]:
        return False
    return _replace_constant(node, 1, np.array(2e-3, np.float32), constants)


def _closed_interval(node: onnx.NodeProto, constants: dict[str, Any]) -> bool:
    if node.op_type != "LessOrEqual":
        return False
    return _replace_constant(node, 1, np.array(4.0, np.float32), constants)


@pytest.mark.parametrize(
    ("simplify", "change"),
    [
        (simplify_attention, _other_axis),
        (simplify_attention, _other_scale),
        (simplify_splines, _other_slope),
        (simplify_splines, _closed_interval),
    ],
)
def test_what_differs_stays(
    prepared: onnx.ModelProto, simplify: Callable[[Graph], int], change: Callable[..., bool]
) -> None:
    assert simplify(Graph(_changed(prepared, change))) == 0


def test_nothing_is_done_for_several_utterances(tiny: GraphModel) -> None:
    graph = Graph(prepare(tiny.graph()))
    assert simplify_attention(graph) == 0
    assert simplify_splines(graph) == 0


def _sum(model: onnx.ModelProto, bias: float) -> bool:
    graph = Graph(copy_model(model))
    result = Tensor(graph, "y", "x") + bias
    x = np.ones((1, 4, 3), np.float32)
    return verified_replace(graph, ["x"], "y", result.name, [{"x": x}])


def test_only_what_agrees_is_replaced() -> None:
    """A part that reads another tensor, or noise, stays."""
    half = make_node("Identity", "half", "other")
    lengths = make_node("Cast", "lengths", "other", to=TensorProto.FLOAT)
    noise = make_node("RandomNormalLike", "x", "other", scale=1e-9)
    for other, bias, replaced in (
        (half, 0.5, True),
        (half, 0.6, False),
        (lengths, 0.0, False),
        (noise, 0.0, False),
    ):
        nodes = [other, make_node("Add", "x other", "y"), make_node("Relu", "y", "z")]
        model = build(nodes, {}, {"half": np.array(0.5, np.float32)})
        model.graph.output[0].name = "z"
        assert _sum(model, bias) is replaced, (other.op_type, bias)
