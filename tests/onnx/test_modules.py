"""Finding the module an operator came from, and its weight."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graphs import make_body, make_model, make_node
from tts_compress.onnx.modules import (
    WeightFinder,
    initializer_names,
    module_of,
    name_by_modules,
    vary_weights,
)

_NAMES = {"dec.ups.0.weight", "dec.ups.0.bias", "enc_p.norm.gamma", "dec.w_g", "onnx::Conv_12"}


@pytest.mark.parametrize(
    ("name", "inputs", "module"),
    [
        ("/dec/resblocks.0/convs.1/Conv", ["x"], "dec.resblocks.0.convs.1"),
        ("/enc_p/Add_3", ["x"], "enc_p"),
        ("Conv_12", ["x", "onnx::Conv_12", "dec.ups.0.bias"], "dec.ups.0"),
        ("Mul_1", ["x", "enc_p.norm.gamma"], "enc_p.norm"),
        ("Conv_12", ["x", "onnx::Conv_12"], ""),
        ("Conv_12", ["x", "missing.weight"], ""),
        ("", ["x"], ""),
        ("/Ceil", ["x"], ""),
    ],
)
def test_module_of_an_operator(name: str, inputs: list[str], module: str) -> None:
    node = helper.make_node("Any", inputs, ["y"], name)
    assert module_of(node, _NAMES) == module


@pytest.mark.parametrize(
    ("scopes", "module"),
    [
        ("['', 'enc', 'enc.attn.0', 'enc.attn.0.q', 'conv1d']", "enc.attn.0.q"),
        ("['', 'add']", ""),
        ("['', 'a, b', 'add']", ""),
    ],
)
def test_scopes_in_metadata_tell_the_module(scopes: str, module: str) -> None:
    node = helper.make_node("MatMul", ["x", "val_12"], ["y"], "node_linear_3")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert module_of(node, _NAMES) == module


def test_names_get_the_modules_that_only_parameters_name() -> None:
    named = {"Conv_12": "/dec.ups.0/Conv_12", "/enc/Add": "/enc/Add", "Add_1": "Add_1", "": ""}
    nodes = [make_node("Any", "x dec.ups.0.bias", "y", "Conv_12")]
    nodes += [make_node("Any", "x", "y", name) for name in list(named)[1:]]
    bias = numpy_helper.from_array(np.zeros(1), "dec.ups.0.bias")
    made = helper.make_graph(nodes, "g", [], [], [bias])
    name_by_modules(made)
    assert [node.name for node in made.node] == list(named.values())
    assert module_of(made.node[0], ()) == "dec.ups.0"


def test_layers_that_nothing_names_are_modules_of_their_own() -> None:
    nodes = [
        make_node("Conv", "x w_0", "conv.0/tmp", "p2o.Conv.0"),
        helper.make_node("MatMul", ["x", "w_1"], ["product"]),
        make_node("Relu", "x", "z", "p2o.Relu.0"),
    ]
    weights = [numpy_helper.from_array(np.zeros((2, 2, 1)), name) for name in ("w_0", "w_1")]
    made = helper.make_graph(nodes, "g", [], [], weights)
    for _ in range(2):  # the second time nothing is left to name
        name_by_modules(made)
        modules = [module_of(node, ()) for node in made.node]
        assert modules == ["layers.conv_0_tmp", "layers.product", ""]


@pytest.fixture
def graph() -> onnx.GraphProto:
    """A plain, a stored-small and a missing weight."""
    nodes = [
        make_node("Conv", "x w", "a"),
        make_node("DequantizeLinear", "q s z", "wide"),
        make_node("Conv", "a wide", "b"),
        make_node("MatMul", "a b", "c"),
        make_node("Gather", "vector c", "d"),
        make_node("Relu", "d", "e"),
    ]
    shapes = {"w": (2, 3), "q": (4, 5), "vector": (7,)}
    initializers = [numpy_helper.from_array(np.zeros(v, np.int8), k) for k, v in shapes.items()]
    return helper.make_graph(nodes, "g", [], [], initializers)


def test_weights_are_found_plain_and_behind_what_widens_them(graph: onnx.GraphProto) -> None:
    finder = WeightFinder(graph)
    found = [finder.find(node) for node in graph.node]
    assert [tensor.name if tensor else None for tensor in found] == [
        "w",
        None,
        "q",
        None,
        None,
        None,
    ]
    assert not finder.is_widened(graph.node[0])
    assert finder.is_widened(graph.node[2])


def test_names_of_constants(graph: onnx.GraphProto) -> None:
    assert initializer_names(graph) == {"w", "q", "vector"}


def test_weights_vary_by_an_8192nd_at_most_and_constants_do_not() -> None:
    weight = np.linspace(-2.0, 2.0, 16).reshape(4, 4)
    body = make_body([make_node("MatMul", "x inner", "z")], {}, {"z": [4, 4]}, {"inner": weight})
    nodes = [
        make_node("MatMul", "x layer", "a"),
        make_node("Mul", "a harmonics", "b"),
        make_node("Add", "b bias", "c"),
        make_node("Gather", "table numbers", "e"),
        make_node("If", "yes", "d", then_branch=body, else_branch=body),
    ]
    values = {"layer": weight, "harmonics": weight, "bias": weight[0], "yes": np.array(True)}
    values |= {"table": weight, "numbers": np.array([0])}
    graph = make_model(nodes, {"x": [4, 4]}, {"c": [4, 4], "d": [4, 4]}, values)
    before = graph.SerializeToString()
    other = vary_weights(graph)
    assert graph.SerializeToString() == before
    assert vary_weights(graph) == other
    after = {item.name: numpy_helper.to_array(item) for item in other.graph.initializer}
    assert all(
        np.array_equal(after[name], np.float32(values[name]))
        for name in ("harmonics", "bias", "table")
    )
    (inner,) = other.graph.node[4].attribute[0].g.initializer
    for changed in (after["layer"], numpy_helper.to_array(inner)):
        change = np.abs(changed / weight - 1.0)
        assert 0.0 < change.min() < change.max() <= 1.001 / 8192
