"""Masks are dropped where one utterance makes them all ones, and nowhere else."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_node, operators_of
from tests.onnx.rewrite.along_time import build, rewritten, run
from tts_compress.onnx.graph import Graph, copy_model, infer_types
from tts_compress.onnx.rewrite.eliminate_identity import drop_masks, single_utterance

_CONSTANTS = {
    "zero": np.array(0, np.int64),
    "one": np.array(1, np.int64),
    "two": np.array(2, np.int64),
    "first": np.array([0], np.int64),
    "second": np.array([1], np.int64),
    "nothing": np.array(0, np.float32),
    "low": np.array(-1e4, np.float32),
}


def _mask(longest: str) -> list[onnx.NodeProto]:
    """Return the nodes of a mask (B, 1, frames), as torch exports it."""
    return [
        make_node("Shape", "x", "shape"),
        make_node("Gather", "shape two", "frames", axis=0),
        make_node("ReduceMax", "lengths", "most", keepdims=0),
        make_node("Range", f"zero {longest} one", "numbers"),
        make_node("Unsqueeze", "numbers first", "row"),
        make_node("Unsqueeze", "lengths second", "column"),
        make_node("Less", "row column", "valid"),
        make_node("Unsqueeze", "valid second", "valid3"),
        make_node("Cast", "valid3", "mask", to=TensorProto.FLOAT),
    ]


def _masked(longest: str) -> list[onnx.NodeProto]:
    return [*_mask(longest), make_node("Mul", "x mask", "m"), make_node("Tanh", "m", "y")]


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize(
    ("longest", "batch"), [("most", "batch_size"), ("frames", "batch_size"), ("most", "N")]
)
def test_masks_of_one_utterance_are_dropped(longest: str, batch: str, is_narrow: bool) -> None:
    """Graphs in 16 bits narrow theirs before they widen them."""
    counts: list[int] = []

    def rewrite(graph: Graph) -> int:
        counts.append(single_utterance(graph))
        return drop_masks(graph)

    nodes = _masked(longest)
    if is_narrow:
        nodes.insert(-3, make_node("Cast", "valid3", "half", to=TensorProto.FLOAT16))
        nodes[-3].input[0] = "half"
    model = build(nodes, {}, _CONSTANTS, batch)
    assert operators_of(rewritten(rewrite, model)) == ["Tanh"]
    assert counts == [2]


@pytest.mark.parametrize(("axes", "count"), [(["speed"], 2), (["styles", 256], 0)])
def test_inputs_of_several_axes_begin_with_the_utterances(axes: list[str], count: int) -> None:
    """Another number of something else could be the batch as well; a number for all is none."""
    model = build(_masked("most"), {}, _CONSTANTS, "N")
    other = onnx.helper.make_tensor_value_info("other", TensorProto.FLOAT, axes)
    model.graph.input.append(other)
    graph = Graph(model)
    assert single_utterance(graph) == count
    assert drop_masks(graph) == bool(count)


def test_symbols_are_no_utterances() -> None:
    """They have lengths, too; what stands for each of them has no other axis that is open."""
    model = build(_masked("most"), {}, _CONSTANTS, "N")
    del model.graph.input[0].type.tensor_type.shape.dim[2]
    assert single_utterance(Graph(model)) == 0


@pytest.mark.parametrize(
    ("masked", "is_typed"),
    [(make_node("Neg", "x", "t"), False), (make_node("ReduceMax", "x", "t", axes=[1]), True)],
    ids=["unknown shape", "one channel"],
)
def test_a_mask_of_a_computed_tensor_is_dropped(masked: onnx.NodeProto, is_typed: bool) -> None:
    nodes = [masked, *_mask("most"), make_node("Mul", "t mask", "m"), make_node("Tanh", "m", "y")]
    nodes = [node for node in nodes if node.output[0] not in {"shape", "frames"}]
    model = build(nodes, {}, _CONSTANTS, batch=1)
    if is_typed:
        infer_types(model)
    assert operators_of(rewritten(drop_masks, model)) == [masked.op_type, "Tanh"]


def test_numbers_of_the_caller_are_no_mask() -> None:
    nodes = [make_node("Cast", "lengths", "m", to=TensorProto.FLOAT), make_node("Mul", "x m", "y")]
    rewritten(drop_masks, build(nodes, {}, {}, batch=1), 0)


def test_a_masked_output_keeps_its_name() -> None:
    nodes = [*_mask("most"), make_node("Mul", "x mask", "y")]
    model = build(nodes, {}, _CONSTANTS)
    rewritten(lambda graph: single_utterance(graph) and drop_masks(graph), model, 0)


def test_masked_attention_is_freed() -> None:
    nodes = [
        *_mask("most"),
        make_node("Unsqueeze", "mask two", "across"),
        make_node("Unsqueeze", "mask last", "down"),
        make_node("Mul", "across down", "square"),
        make_node("Equal", "square nothing", "hidden"),
        make_node("Unsqueeze", "x second", "keys"),
        make_node("Transpose", "keys", "queries", perm=[0, 1, 3, 2]),
        make_node("MatMul", "queries keys", "scores"),
        make_node("Where", "hidden low scores", "kept"),
        make_node("Softmax", "kept", "y", axis=-1),
    ]
    constants = _CONSTANTS | {"two": np.array([2], np.int64), "last": np.array([3], np.int64)}
    nodes = [node for node in nodes if node.output[0] not in {"shape", "frames"}]
    rewritten(
        lambda graph: single_utterance(graph) and drop_masks(graph), build(nodes, {}, constants)
    )
    for kept in ("mean", "low"):
        nodes[-2] = make_node("Where", f"hidden low {kept}", "kept")
        mean = make_node("ReduceMean", "keys", "mean", axes=[2, 3])
        wide = build([*nodes[:-2], mean, *nodes[-2:]], {}, constants, batch=1)
        assert drop_masks(Graph(wide)) == 0, "the mask makes it square"
    nodes[-2] = make_node("Where", "hidden low scores", "kept")
    constants["nothing"] = np.array(1, np.float32)
    assert drop_masks(Graph(build(nodes, {}, constants, batch=1))) == 0, "all is hidden"


@pytest.mark.parametrize(
    "source",
    [
        make_node("ReduceMean", "x", "g", axes=[2]),
        make_node("Identity", "each", "g"),
        make_node("ReduceMean", "x", "g", axes=[0, 1], keepdims=0),
    ],
)
def test_a_mask_that_repeats_a_frame_stays(source: onnx.NodeProto) -> None:
    """Nothing else gave the result its length, or its axes."""
    nodes = [source, *_mask("most"), make_node("Mul", "mask g", "m"), make_node("Neg", "m", "y")]
    nodes = [node for node in nodes if node.output[0] not in {"shape", "frames"}]
    model = build(nodes, {}, _CONSTANTS | {"each": np.ones((1, 4, 1), np.float32)}, batch=1)
    infer_types(model)
    rewritten(drop_masks, model, 0)


def test_several_utterances_keep_their_masks() -> None:
    model = build(_masked("most"), {}, _CONSTANTS)
    graph = Graph(copy_model(model))
    assert drop_masks(graph) == 0
    assert np.array_equal(run(graph.finish(), 7, batch=2), run(model, 7, batch=2))


@pytest.mark.parametrize(
    ("result", "tensor"), [("numbers", "one"), ("valid", "column"), ("column", "shorter")]
)
def test_a_mask_of_some_frames_stays(result: str, tensor: str) -> None:
    """Numbers from one, or a comparison with other lengths, are no mask of valid frames."""
    nodes = [make_node("Sub", "lengths one", "shorter"), *_masked("frames")]
    (node,) = [node for node in nodes if node.output[0] == result]
    node.input[0] = tensor
    assert drop_masks(Graph(build(nodes, {}, _CONSTANTS, batch=1))) == 0


def test_frames_that_no_text_decides_keep_their_mask() -> None:
    nodes = [node for node in _masked("two") if node.output[0] not in {"shape", "frames", "most"}]
    assert drop_masks(Graph(build(nodes, {}, _CONSTANTS, batch=1))) == 0
