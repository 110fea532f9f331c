"""Editing graphs keeps them valid."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, shape_inference

from tests.graphs import Values, make_body, make_model, make_node
from tts_compress.onnx.graph import Graph, element_types, infer_types
from tts_compress.onnx.nodes import tensors_read
from tts_compress.onnx.session import open_session


@pytest.fixture
def model() -> onnx.ModelProto:
    """`y = relu(x) + w`, with a constant nobody reads."""
    nodes = [make_node("Relu", "x", "a", "first"), make_node("Add", "a w", "y", "second")]
    weights = {name: np.ones(2) for name in ("w", "unused")}
    return make_model(nodes, {"x": [2]}, {"y": [2]}, weights)


def test_types_are_inferred_behind_the_runtimes_own_operators() -> None:
    nodes = [
        make_node("FusedMatMul", "x w", "h", domain="com.microsoft"),
        make_node("Relu", "h", "a"),
        make_node("Neg", "a", "y"),
    ]
    domains = ["com.microsoft"]
    model = make_model(nodes, {"x": [2]}, {"y": None}, {"w": np.ones((2, 2))}, domains=domains)
    infer_types(model)
    assert element_types(model.graph)["a"] == TensorProto.FLOAT


@pytest.mark.parametrize("version", [3, 10])
def test_types_are_inferred_without_the_bytes_of_weights(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a large graph was written and read for each choice of formats."""
    nodes = [make_node("MatMul", "x weight", "product"), make_node("Reshape", "product sizes", "y")]
    weights = {"weight": np.ones((64, 64)), "sizes": np.array([4, 16, 8])}
    model = make_model(nodes, {"x": [8, 64]}, {"y": None}, weights)
    model.ir_version = version
    if version < 4:  # constants are inputs there, too
        constants = model.graph.initializer
        shapes = [helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in constants]
        model.graph.input.extend(shapes)
    whole, read = shape_inference.infer_shapes, list[int]()

    def infer(light: onnx.ModelProto) -> onnx.ModelProto:
        read.append(light.ByteSize())
        return whole(light)

    expected = whole(model)
    monkeypatch.setattr(shape_inference, "infer_shapes", infer)
    infer_types(model)
    assert model == expected
    assert max(read) < 1000


def test_operator_put_between_two_others_runs(model: onnx.ModelProto) -> None:
    graph = Graph(model)
    graph.redirect("a", "minus")
    graph.insert("Neg", ["a"], "minus")
    finished = graph.finish()
    onnx.checker.check_model(finished)
    assert [node.op_type for node in finished.graph.node] == ["Relu", "Neg", "Add"]
    assert [tensor.name for tensor in finished.graph.initializer] == ["w"]


def test_shared_constants_are_added_once(model: onnx.ModelProto) -> None:
    graph = Graph(model)
    assert graph.share_constant("new", np.ones(2, np.float32)) == "new"
    assert graph.share_constant("new", np.zeros(2, np.float32)) == "new"
    np.testing.assert_array_equal(graph.value("new"), [1, 1])


def test_constants_of_the_graph_are_not_taken_for_added_ones(model: onnx.ModelProto) -> None:
    graph = Graph(model)
    name = graph.share_constant("w", np.zeros(2, np.float32))
    assert name != "w"
    np.testing.assert_array_equal(graph.value("w"), [1, 1])


def test_renamed_output_leaves_its_readers(model: onnx.ModelProto) -> None:
    graph = Graph(model)
    graph.rename_output(graph.nodes[0], 0, "half")
    graph.insert("Cast", ["half"], "a", to=TensorProto.FLOAT)
    assert [node.op_type for node in graph.finish().graph.node] == ["Relu", "Cast", "Add"]


def test_names_and_constants_of_branches_are_kept() -> None:
    """A branch of an `If` reads tensors of the graph around it without naming them as inputs."""
    branch = make_body([make_node("Add", "a w", "z")], {}, {"z": None})
    nodes = [
        make_node("If", "c", "y", then_branch=branch, else_branch=branch),
        make_node("Relu", "x", "a"),
    ]
    inputs: Values = {"x": [], "c": (TensorProto.BOOL, [])}
    finished = Graph(make_model(nodes, inputs, {"y": None}, {"w": np.ones(2)})).finish().graph
    assert [node.op_type for node in finished.node] == ["Relu", "If"]
    assert [tensor.name for tensor in finished.initializer] == ["w"]


def _branching() -> onnx.ModelProto:
    """Build a graph whose convolution only the branches of an If read."""

    def branch(operator: str, name: str) -> onnx.GraphProto:
        return make_body([make_node(operator, "conv", name)], {}, {name: None})

    branches = {"then_branch": branch("Neg", "a"), "else_branch": branch("Abs", "b")}
    nodes = [make_node("Neg", "x", "conv"), make_node("If", "flag", "y", **branches)]
    return make_model(nodes, {"x": [2], "flag": (TensorProto.BOOL, [])}, {"y": None}, opset=17)


def test_branches_are_readers_and_can_be_redirected() -> None:
    """A tensor that only branches read was taken for one that nobody does."""
    graph = Graph(_branching())
    (reader,) = graph.readers("conv")
    assert reader.op_type == "If"
    assert graph.only_reader("conv") is reader
    graph.redirect("conv", "twice")
    graph.insert("Add", ["conv", "conv"], "twice")
    assert [node.op_type for node in graph.readers("twice")] == ["If"]
    assert [node.op_type for node in graph.readers("conv")] == ["Add"]
    session = open_session(graph.finish(), "test")
    for flag, wanted in ((True, [2.0, -4.0]), (False, [2.0, 4.0])):
        feeds = {"x": np.array([1, -2], np.float32), "flag": np.array(flag)}
        assert session.run(None, feeds)[0].tolist() == wanted


def test_names_within_a_body_are_no_tensors_around_it() -> None:
    """A result of its own that bears the name of a later tensor made a cycle of the graph."""
    body = make_body(
        [make_node("Add", "h w", "sum"), make_node("Identity", "on", "again")],
        {"i": (TensorProto.INT64, []), "on": (TensorProto.BOOL, []), "h": None},
        {"again": (TensorProto.BOOL, []), "sum": None},
    )
    nodes = [make_node("Loop", "n - x", "last", body=body), make_node("Neg", "last", "sum")]
    inputs: Values = {"x": [2], "n": (TensorProto.INT64, [])}
    graph = Graph(make_model(nodes, inputs, {"sum": [2]}, {"w": np.ones(2)}))
    assert tensors_read(graph.nodes[0]) == {"n", "x", "w"}
    graph.redirect("w", graph.add_constant("v", np.full(2, 2.0, np.float32)))
    feeds = {"x": np.zeros(2, np.float32), "n": np.array(3)}
    assert open_session(graph.finish(), "test").run(None, feeds)[0].tolist() == [-6, -6]


def test_an_inputs_own_value_is_no_constant(model: onnx.ModelProto) -> None:
    """Folded, it was lost: the caller's value was ignored, or had to be given."""
    model.graph.input.extend(make_body([], {"w": [2]}, {}).input)
    graph = Graph(model)
    assert graph.constant("w") is None
    session = open_session(graph.finish(), "test")
    x = np.ones(2, np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [2, 2]
    assert session.run(None, {"x": x, "w": 4 * x})[0].tolist() == [5, 5]


def test_an_inputs_own_value_is_kept_unread(model: onnx.ModelProto) -> None:
    model.graph.input.extend(make_body([], {"unused": [2]}, {}).input)
    session = open_session(Graph(model).finish(), "test")
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [2, 2]
