"""Regions on 8-bit codes: near the real graph, nothing between two convolutions, clear refusals."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.measures import snr_db
from tests.onnx.integer.emitted import emitted
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer import add_in_pairs, observed_tensors
from tts_compress.onnx.integer.region import find_region
from tts_compress.onnx.nodes import set_nodes

PLANNED = frozenset({"pre", "up", "first", "second"})


def _vocoder(stride: int = 4, pads: tuple[int, int] = (2, 2)) -> onnx.ModelProto:
    """Return pre → up → a residual block → mean → post, 16 channels, as HiFi-GAN has it."""
    generator = np.random.default_rng(0)
    shapes = {"pre": (32, 8, 7), "up": (32, 16, 8), "first": (16, 16, 3), "second": (16, 16, 3)}
    shapes["post"] = (1, 16, 7)
    constants: dict[str, Any] = {"three": np.array(3.0)}
    for name, shape in shapes.items():
        constants[f"{name}.w"] = generator.normal(scale=0.15, size=shape)
        size = 16 if name == "up" else shape[0]
        constants[f"{name}.b"] = generator.normal(scale=0.1, size=size)

    def conv(name: str, source: str, **attributes: Any) -> onnx.NodeProto:
        return make_node("Conv", f"{source} {name}.w {name}.b", name, **attributes)

    nodes = [
        conv("pre", "x", pads=[3, 3]),
        make_node("LeakyRelu", "pre", "pre.a", alpha=0.1),
        make_node("ConvTranspose", "pre.a up.w up.b", "up", strides=[stride], pads=list(pads)),
        make_node("LeakyRelu", "up", "up.a", alpha=0.1),
        conv("first", "up.a", pads=[1, 1]),
        make_node("Add", "first up", "sum"),
        make_node("LeakyRelu", "sum", "sum.a", alpha=0.1),
        conv("second", "sum.a", pads=[2, 2], dilations=[2]),
        make_node("Add", "second sum", "total"),
        make_node("Div", "total three", "mean"),
        make_node("LeakyRelu", "mean", "mean.a"),
        conv("post", "mean.a", pads=[3, 3]),
    ]
    inputs, outputs = {"x": ["batch", 8, "time"]}, {"post": ["batch", 1, "samples"]}
    return make_model(nodes, inputs, outputs, constants)


def _signal(length: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(length).normal(size=(2, 8, length)).astype(np.float32)}


def _emit(model: onnx.ModelProto, convolutions: frozenset[str] = PLANNED) -> onnx.ModelProto:
    return emitted(model, convolutions, _signal(64))


def test_no_layout_or_code_change_between_convolutions() -> None:
    model = _vocoder()
    types = operators_of(_emit(model))
    assert types.count("QLinearConv") == 4
    assert types.count("Conv") == 1
    inner = types[types.index("QLinearConv") : len(types) - types[::-1].index("QLinearConv")]
    assert not {"Transpose", "QuantizeLinear", "DequantizeLinear"} & set(inner)


def test_only_codes_that_follow_from_no_others_are_observed() -> None:
    model = _vocoder()
    chosen = ["x", "pre", "up", "first", "sum", "second", "total"]
    assert observed_tensors(model, PLANNED) == chosen
    assert observed_tensors(model, PLANNED | {"post"}) == [*chosen, "post"]  # of an odd length
    assert observed_tensors(_vocoder(8, (0, 0)), PLANNED | {"post"}) == chosen


@pytest.mark.parametrize(
    ("scaling", "outputs", "merged"),
    [
        ("Div total three", [], True),
        ("Mul third total", [], True),
        ("Mul total below", [], False),
        ("Div total three", ["mean"], False),
    ],
)
def test_a_sum_that_only_a_leaky_relu_reads_has_no_codes(
    scaling: str, outputs: list[str], merged: bool
) -> None:
    model, (operator, inputs) = _vocoder(), scaling.split(" ", 1)
    model.graph.node[-3].CopyFrom(make_node(operator, inputs, "mean"))
    for name, value in (("third", 1 / 3), ("below", -1 / 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, outputs))
    region = find_region(Graph(model), PLANNED)
    sums = {name: (s.left, s.right, s.total) for name, s in region.sums.items()}
    assert sums == ({"mean.a": ("second", "sum", "total")} if merged else {})
    assert region.skipped == ({"mean", "total"} if merged else set())


def test_the_same_input_gives_the_same_bytes() -> None:
    model = _vocoder()
    before = model.SerializeToString()
    made = (_emit(model) for _ in range(2))
    first, second = (integer.SerializeToString() for integer in made)
    assert first == second
    assert model.SerializeToString() == before


def test_every_subset_of_the_convolutions_works() -> None:
    """Real and coded readers of one tensor must both be served, wherever the border runs."""
    model = _vocoder()
    (expected,) = run_model(model, _signal(16))
    for size in range(1, 5):
        for nodes in itertools.combinations(sorted(PLANNED), size):
            convolutions = frozenset(nodes)
            integer = _emit(model, convolutions)
            (result,) = run_model(integer, _signal(16))
            assert snr_db(expected, result) > 30, nodes


def test_sums_without_names_become_pairs_of_other_names() -> None:
    sums = {"s": "a b b", "only": "s", "y": "only a b"}
    nodes = [make_node("Sum", terms, name, name="") for name, terms in sums.items()]
    graph = Graph(make_model(nodes, {"a": [2], "b": [2]}, {"y": None}))
    add_in_pairs(graph)
    ones = dict.fromkeys("ab", np.ones(2, np.float32))
    assert run_model(graph.finish(), ones)[0].tolist() == [5, 5]


def test_a_number_that_adds_an_axis_stays_real() -> None:
    """Codes are three axes wide; the axis was lost, and the operators behind it did not fit."""
    model = _vocoder()
    nodes = list(model.graph.node)
    third = numpy_helper.from_array(np.full((1, 1, 1, 1), 3, np.float32), "three")
    model.graph.initializer[0].CopyFrom(third)
    cut = nodes.index(next(node for node in nodes if node.op_type == "Div"))
    nodes[cut].output[0] = "images"
    nodes.insert(cut + 1, make_node("Squeeze", "images first_axis", "mean"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first_axis"))
    set_nodes(model.graph, nodes)
    before, after = (run_model(one, _signal(64))[0] for one in (model, _emit(model)))
    assert snr_db(before, after) > 30
