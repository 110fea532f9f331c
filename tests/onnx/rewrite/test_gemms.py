"""A Gemm is written as a product and a sum, and multiplied in integers like any product."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.measures import snr_db
from tests.rules import make_recipe
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize.convert import Conversion, convert, convertible_graph
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.quantize.prepare import optimize
from tts_compress.onnx.rewrite.convolutions import split_gemms
from tts_compress.recipes.recipe import find_recipe


def _gemms(
    *layers: dict[str, Any], bias: str = "row", computed: bool = False, scaled: bool = False
) -> onnx.ModelProto:
    """Build layers from 24 to 32 channels that read one input and share their constants.

    If scaled, each reads a multiple of it: the runtime computes the same product only once.
    """
    generator = np.random.default_rng(0)
    shapes = {"row": (32,), "rows": (1, 32), "one": (1,)}
    constants = {"w": generator.normal(0, 0.2, (24, 32)), "wt": generator.normal(0, 0.2, (32, 24))}
    if bias:
        constants["b"] = generator.normal(0, 1, shapes[bias])
    nodes, shift = [], "b" if bias else ""
    for i, layer in enumerate(layers):
        matrix = "other" if computed else "wt" if layer.get("transB") else "w"
        read = f"x{i}" if scaled else "x"
        if scaled:
            constants[f"factor{i}"] = np.array(i + 1.0)
            nodes.append(make_node("Mul", f"x factor{i}", read))
        name = f"/net/fc{i}/Gemm"
        nodes.append(make_node("Gemm", f"{read} {matrix} {shift}", f"y{i}", name, **layer))
    sources: dict[str, Any] = {"x": ["n", 24]} | ({"other": [24, 32]} if computed else {})
    results = dict.fromkeys(f"y{i}" for i in range(len(layers)))
    return make_model(nodes, sources, results, constants, opset=17)


_X = np.random.default_rng(1).normal(size=(7, 24)).astype(np.float32)
_LAYERS: tuple[dict[str, Any], ...] = (
    {},
    {"transB": 1},
    {"alpha": 0.5, "beta": -2.0},
    {"transB": 1, "alpha": 3.0},
)


@pytest.mark.parametrize("bias", ["row", "rows", "one", ""])
def test_product_and_sum_are_the_same(bias: str) -> None:
    """Also where layers share a matrix or a bias, each with other factors."""
    model = _gemms(*_LAYERS, bias=bias)
    wanted = run_model(model, {"x": _X})
    graph = Graph(model)
    assert split_gemms(graph) == len(_LAYERS)
    split = graph.finish()
    assert "Gemm" not in operators_of(split)
    for before, after in zip(wanted, run_model(split, {"x": _X}), strict=True):
        np.testing.assert_allclose(before, after, atol=2e-5)


def test_gemm_without_a_constant_matrix_stays() -> None:
    for model in (_gemms({"transA": 1}), _gemms({}, computed=True)):
        assert split_gemms(Graph(model)) == 0


@pytest.mark.parametrize("scheme", ["int8", "int8-dynamic"])
def test_runtime_multiplies_integers_and_adds_the_bias_at_once(scheme: str) -> None:
    model = _gemms(*_LAYERS, scaled=True)
    graph = convertible_graph(model, "qdq", batch_one=False).model
    decisions = decide(graph, find_recipe("onnx", scheme))
    recipe = make_recipe({"activations": "dynamic"})
    # `int8` leaves nothing but products here, so its form is that of the dynamic recipe.
    assert decisions == decide(graph, recipe)
    assert {d.label for d in decisions} == {"MatMul int8/dynamic"}
    assert {d.module for d in decisions} == {f"net.fc{i}" for i in range(len(_LAYERS))}
    converted = convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={}))
    run = operators_of(optimize(converted, fuse=True))
    assert run.count("MatMulIntegerToFloat") + run.count("DynamicQuantizeMatMul") == len(_LAYERS)
    assert "Add" not in run
    both = (run_model(one, {"x": _X}) for one in (model, converted))
    for before, after in zip(*both, strict=True):
        assert snr_db(before, after) > 34


def test_gemm_that_cannot_be_split_is_stored_small() -> None:
    model = _gemms({"transA": 1})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 24
    graph = convertible_graph(model, "qdq", batch_one=False).model
    decisions = decide(graph, find_recipe("onnx", "int8-dynamic"))
    assert [d.label for d in decisions] == ["Gemm int8/none"]
    converted = convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={}))
    x = np.random.default_rng(2).normal(size=(24, 24)).astype(np.float32)
    before, after = (run_model(one, {"x": x})[0] for one in (_gemms({"transA": 1}), converted))
    assert np.abs(before - after).max() < 0.05


def test_inspect_counts_gemms(tmp_path: Path) -> None:
    onnx.save(_gemms({}), tmp_path / "g.onnx")
    (part,) = OnnxModel(tmp_path / "g.onnx", spec="g").components().values()
    assert part.parameters == 24 * 32
    assert dict(part.operators) == {"Gemm": 1}
