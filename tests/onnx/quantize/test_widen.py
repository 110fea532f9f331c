"""Graphs that are in half precision already are compressed from FP32, or refused with the truth."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import Values, make_body, make_model, make_node, run_model
from tests.measures import snr_db
from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.nodes import copy_attributes
from tts_compress.onnx.quantize.convert import Conversion, convert, convertible_graph
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.quantize.prepare import widen_halves
from tts_compress.onnx.session import open_session
from tts_compress.recipes.recipe import find_recipe


def _half(*, border: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """Build a graph in FP16 with an If, a Cast and a random operator; the border may be FP32."""
    half = TensorProto.FLOAT16
    generator = np.random.default_rng(0)
    weights = {"w": generator.normal(0, 0.2, (16, 24)), "v": generator.normal(0, 0.2, (24, 8))}

    def branch(name: str, factor: float) -> onnx.GraphProto:
        value = numpy_helper.from_array(np.array(factor, np.float16))
        nodes = [
            make_node("Constant", "", f"{name}.factor", value=value),
            make_node("Mul", f"h {name}.factor", name),
        ]
        return make_body(nodes, {}, {name: (half, None)})

    is_wide = border == TensorProto.FLOAT
    x, y = ("x.half", "y.half") if is_wide else ("x", "y")
    nodes = [
        *([make_node("Cast", "x", "x.half", to=half)] if is_wide else []),
        make_node("MatMul", f"{x} w", "h", "/net/a/MatMul"),
        make_node("If", "flag", "g", then_branch=branch("t", 1.5), else_branch=branch("e", -1.0)),
        make_node("RandomUniformLike", "g", "noise", dtype=half, low=0.0, high=1e-6),
        make_node("Sum", "g noise", "k"),
        make_node("MatMul", "k v", y, "/net/b/MatMul"),
        *([make_node("Cast", "y.half", "y", to=TensorProto.FLOAT)] if is_wide else []),
    ]
    return make_model(
        nodes,
        {"x": (border, ["n", 16]), "flag": (TensorProto.BOOL, [])},
        {"y": (border, None)},
        {n: v.astype(np.float16) for n, v in weights.items()},
        opset=17,
    )


def _expected(model: onnx.ModelProto, x: Any, *, flag: bool) -> Any:
    w, v = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    return x.astype(np.float64) @ w * (1.5 if flag else -1.0) @ v


@pytest.mark.parametrize("border", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8-weight-only", "bf16", "fp16"])
def test_half_precision_is_compressed_from_full(border: int, scheme: str) -> None:
    """It was refused: "no module matches '*'". Inputs and outputs keep their types."""
    model = _half(border=border)
    graph = convertible_graph(copy_model(model), "qdq", batch_one=False).model
    decisions = decide(graph, find_recipe("onnx", scheme))
    assert len(decisions) == 2
    converted = convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={}))
    kind = np.float32 if border == TensorProto.FLOAT else np.float16
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(kind)
    session = open_session(converted, "test")
    for flag in (True, False):
        (y,) = session.run(None, {"x": x, "flag": np.array(flag)})
        assert y.dtype == kind
        assert snr_db(_expected(model, x, flag=flag), y) > (40 if scheme == "bf16" else 33)


def test_constant_that_is_returned_keeps_its_type() -> None:
    """The graph was refused: FP32 where its output says FP16."""
    model = _half()
    model.graph.output.append(make_body([], {}, {"w": (TensorProto.FLOAT16, None)}).output[0])
    before = numpy_helper.to_array(model.graph.initializer[0])
    graph = convertible_graph(model, "qdq", batch_one=False).model
    decisions = decide(graph, find_recipe("onnx", "int8-weight-only"))
    converted = convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={}))
    feeds = {"x": np.ones((5, 16), np.float16), "flag": np.array(True)}
    _, after = open_session(converted, "test").run(None, feeds)
    assert after.dtype == np.float16
    assert np.array_equal(after, before)


def test_functions_are_widened_too() -> None:
    """The casts within them stayed, and the runtime refused a sum of two types."""
    half = TensorProto.FLOAT16
    casts = [make_node("Cast", "a", "h", to=half), make_node("Mul", "h h", "b")]
    nodes = [
        make_node("MatMul", "x w", "m"),
        make_node("Square", "m", "s", domain="own"),
        make_node("Add", "s m", "y"),
    ]
    weights = {"w": np.eye(8, dtype=np.float16)}
    inputs: Values = {"x": (half, [1, 8])}
    model = make_model(nodes, inputs, {"y": (half, None)}, weights, domains=["own"])
    opsets = [helper.make_opsetid("", 15)]
    model.functions.append(helper.make_function("own", "Square", ["a"], ["b"], casts, opsets))
    graph = convertible_graph(model, "qdq", batch_one=False).model
    (y,) = open_session(graph, "test").run(None, {"x": np.full((1, 8), 3, np.float16)})
    assert y.tolist() == [[12.0] * 8]


def test_a_list_that_a_loop_fills_is_widened() -> None:
    """Frames that torch repeats are exported so; a list of another type was refused."""
    half, weights = TensorProto.FLOAT16, {"w": np.eye(8, dtype=np.float16), "two": np.array(2)}
    added = [make_node("Identity", "on", "goes_on"), make_node("SequenceInsert", "s h", "longer")]
    types: Values = {"i": (TensorProto.INT64, []), "on": (TensorProto.BOOL, [])}
    body = make_body(added, types, {"goes_on": (TensorProto.BOOL, [])})
    filled = helper.make_sequence_type_proto(helper.make_tensor_type_proto(half, None))
    body.input.append(helper.make_value_info("s", filled))
    body.output.append(helper.make_value_info("longer", filled))
    nodes = [
        make_node("MatMul", "x w", "h"),
        make_node("SequenceEmpty", "", "empty", dtype=half),
        make_node("Loop", "two - empty", "all", body=body),
        make_node("ConcatFromSequence", "all", "y", axis=0),
    ]
    model = widen_halves(make_model(nodes, {"x": (half, [1, 8])}, {"y": (half, None)}, weights))
    (y,) = run_model(model, {"x": np.full((1, 8), 3, np.float16)})
    assert y.tolist() == [[3.0] * 8] * 2


def test_other_types_and_numbers_stay() -> None:
    """The type has the number 10, which a diagonal has, too."""
    half = TensorProto.FLOAT16
    nodes = [
        make_node("Cast", "x", "n", to=TensorProto.INT64),
        make_node("EyeLike", "n", "y", k=half, dtype=half),
    ]
    inputs: Values = {"x": (half, [16, 16])}
    model = make_model(nodes, inputs, {"y": (half, None)}, {"w": np.eye(8, dtype=np.float16)})
    _, cast, eye, _ = map(copy_attributes, widen_halves(model).graph.node)
    assert (cast["to"], eye) == (TensorProto.INT64, {"k": half, "dtype": TensorProto.FLOAT})


def test_graph_in_full_precision_stays_as_it_is() -> None:
    model = widen_halves(_half())
    again = copy_model(model)
    assert widen_halves(again) == model


def test_weights_that_are_integers_already_are_named() -> None:
    model = widen_halves(_half())
    graph = convertible_graph(model, "qdq", batch_one=False).model
    recipe = find_recipe("onnx", "int8-dynamic")
    rules = tuple(rule.model_copy(update={"min_weights": 1}) for rule in recipe.component)
    recipe = recipe.model_copy(update={"component": rules})
    small = convert(Conversion(graph=graph, decisions=tuple(decide(graph, recipe)), ranges={}))
    with pytest.raises(QuantizationError, match="weights are int8 already; compress the FP32"):
        decide(small, recipe)


def test_rules_that_cover_but_cannot_convert_say_so() -> None:
    graph = convertible_graph(_half(), "qdq", batch_one=False).model
    recipe = find_recipe("onnx", "int8-dynamic")
    rules = [rule.model_copy(update={"min_channels": 999}) for rule in recipe.component]
    strict = recipe.model_copy(update={"component": tuple(rules)})
    with pytest.raises(QuantizationError, match=r"of 2 MatMul, none is of a kind and size"):
        decide(graph, strict)
