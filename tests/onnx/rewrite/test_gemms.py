"""A Gemm is written as a product and a sum, and multiplied in integers like any product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.models.onnx_model import OnnxModel
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize.convert import Conversion, convert, convertible_graph
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.quantize.prepare import optimize
from tts_compress.onnx.rewrite.convolutions import split_gemms
from tts_compress.onnx.session import open_session
from tts_compress.recipes.family import find_recipe
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Recipe, Rule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _gemms(*layers: dict[str, Any], bias: str = "row", computed: bool = False) -> onnx.ModelProto:
    """Build layers from 24 to 32 channels that read one input and share their constants."""
    generator = np.random.default_rng(0)
    shapes = {"row": (32,), "rows": (1, 32), "one": (1,)}
    constants = {"w": generator.normal(0, 0.2, (24, 32)), "wt": generator.normal(0, 0.2, (32, 24))}
    if bias:
        constants["b"] = generator.normal(0, 1, shapes[bias])
    nodes = []
    for i, layer in enumerate(layers):
        inputs = ["x", "wt" if layer.get("transB") else "w", *(["b"] if bias else [])]
        if computed:
            nodes.append(helper.make_node("Identity", ["x"], ["x_copy"]))
            inputs[1] = "other"
        nodes.append(helper.make_node("Gemm", inputs, [f"y{i}"], f"/net/fc{i}/Gemm", **layer))
    float32 = TensorProto.FLOAT
    sources = [helper.make_tensor_value_info("x", float32, ["n", 24])]
    if computed:
        sources.append(helper.make_tensor_value_info("other", float32, [24, 32]))
    graph = helper.make_graph(
        nodes,
        "gemms",
        sources,
        [helper.make_tensor_value_info(f"y{i}", float32, None) for i in range(len(layers))],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_X = np.random.default_rng(1).normal(size=(7, 24)).astype(np.float32)
_LAYERS: tuple[dict[str, Any], ...] = (
    {},
    {"transB": 1},
    {"alpha": 0.5, "beta": -2.0},
    {"transB": 1, "alpha": 3.0},
)


def _run(model: onnx.ModelProto) -> list[Any]:
    return list(open_session(model, "test").run(None, {"x": _X}))


@pytest.mark.parametrize("bias", ["row", "rows", "one", ""])
def test_product_and_sum_are_the_same(bias: str) -> None:
    """Also where layers share a matrix or a bias, each with other factors."""
    model = _gemms(*_LAYERS, bias=bias)
    wanted = _run(model)
    graph = Graph(model)
    assert split_gemms(graph) == len(_LAYERS)
    split = graph.finish()
    assert "Gemm" not in {node.op_type for node in split.graph.node}
    for before, after in zip(wanted, _run(split), strict=True):
        np.testing.assert_allclose(before, after, atol=2e-5)


def test_gemm_without_a_constant_matrix_stays() -> None:
    for model in (_gemms({"transA": 1}), _gemms({}, computed=True)):
        assert split_gemms(Graph(model)) == 0


@pytest.mark.parametrize("scheme", ["int8", "int8-dynamic"])
def test_runtime_multiplies_integers_and_adds_the_bias_at_once(
    scheme: str, snr_db: Callable[[Any, Any], float]
) -> None:
    graph = convertible_graph(_gemms(*_LAYERS), "qdq", batch_one=False).model
    decisions = decide(graph, find_recipe("onnx", scheme))
    rule = Rule(match="*", weights=Weights.INT8, activations=Activations.DYNAMIC)
    recipe = Recipe(version=1, family="onnx", scheme="int8", summary="test", component=(rule,))
    # `int8` leaves nothing but products here, so its form is that of the dynamic recipe.
    assert decisions == decide(graph, recipe)
    assert {d.label for d in decisions} == {"MatMul int8/dynamic"}
    assert {d.module for d in decisions} == {f"net.fc{i}" for i in range(len(_LAYERS))}
    converted = convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={}))
    run = [node.op_type for node in optimize(converted, fuse=True).graph.node]
    assert run.count("MatMulIntegerToFloat") + run.count("DynamicQuantizeMatMul") == len(_LAYERS)
    assert "Add" not in run
    for before, after in zip(_run(_gemms(*_LAYERS)), _run(converted), strict=True):
        assert snr_db(before, after) > 34


def test_gemm_that_cannot_be_split_is_stored_small() -> None:
    model = _gemms({"transA": 1})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 24
    graph = convertible_graph(model, "qdq", batch_one=False).model
    decisions = decide(graph, find_recipe("onnx", "int8-dynamic"))
    assert [d.label for d in decisions] == ["Gemm int8/none"]
    converted = convert(Conversion(graph=graph, decisions=tuple(decisions), ranges={}))
    x = np.random.default_rng(2).normal(size=(24, 24)).astype(np.float32)
    before, after = (
        open_session(one, "test").run(None, {"x": x})[0]
        for one in (_gemms({"transA": 1}), converted)
    )
    assert np.abs(before - after).max() < 0.05


def test_inspect_counts_gemms(tmp_path: Path) -> None:
    onnx.save(_gemms({}), tmp_path / "g.onnx")
    (part,) = OnnxModel(tmp_path / "g.onnx", spec="g").components().values()
    assert part.parameters == 24 * 32
    assert dict(part.operators) == {"Gemm": 1}
