"""Weights in four bits, against the same graph in FP32 with the weights they stand for."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from tests.graphs import make_model, make_node
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.quantize.convert import Conversion, convert, count_operators
from tts_compress.onnx.quantize.decisions import count_decisions, decide
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.onnx.session import open_session
from tts_compress.recipes.recipe import Calibration, Recipe

_SHAPES = {
    "first": (32, 16, 3),
    "up": (32, 32, 4),
    "second": (32, 32, 5),
    "matrix": (32, 48),
    "gemm": (32, 48),
    "w": (1, 64, 32),
    "r": (1, 64, 16),
}


def _recipe(*rules: dict[str, Any], form: str = "qdq") -> Recipe:
    grouped = [{"group_size": 16} | rule for rule in rules]
    return make_recipe(*grouped, scheme="int4-weight-only", format=form)


@pytest.fixture
def chain() -> onnx.ModelProto:
    """Two convolutions, upsampling between them, two products and an LSTM, `[1, 16, T]` in."""
    generator = np.random.default_rng(0)
    tensors = {name: generator.normal(0, 0.2, shape) for name, shape in _SHAPES.items()}
    tensors |= {"bias": generator.normal(0, 0.2, 32), "table": generator.normal(0, 1, (256, 16))}
    nodes = [
        make_node("Gather", "table ids", "rows", "/net/table/Gather"),
        make_node("Transpose", "rows", "x", "/net/Transpose", perm=[0, 2, 1]),
        make_node("Conv", "x first bias", "a", "/net/first/Conv", pads=[1, 1]),
        make_node("LeakyRelu", "a", "b", "/net/LeakyRelu", alpha=0.1),
        make_node("ConvTranspose", "b up", "c", "/net/up/CT", strides=[2], pads=[1, 1]),
        make_node("Conv", "c second", "d", "/net/second/Conv", pads=[4, 4], dilations=[2]),
        make_node("Transpose", "d", "e", "/net/Transpose_1", perm=[2, 0, 1]),
        make_node("MatMul", "e matrix", "f", "/net/matrix/MatMul"),
        make_node("Squeeze", "f one", "g", "/net/Squeeze"),
        make_node("Gemm", "g gemm", "h", "/net/gemm/Gemm", transB=1),
        make_node("Unsqueeze", "h one", "i", "/net/Unsqueeze"),
        make_node("LSTM", "i w r", "y", "/net/lstm/LSTM", hidden_size=16),
    ]
    inputs, outputs = {"ids": (TensorProto.INT64, [1, "t"])}, {"y": ["t2", 1, 1, 16]}
    return make_model(nodes, inputs, outputs, tensors | {"one": np.array([1])})


def _call(seed: int) -> dict[str, Any]:
    return {"ids": np.random.default_rng(seed).integers(0, 256, (1, 60))}


_CALLS = make_calls(_call)


def _run(model: onnx.ModelProto) -> Any:
    ids = np.random.default_rng(7).integers(0, 256, (1, 50))
    # From the next level on, onnxruntime 1.31 multiplies products in its own 8-bit blocks.
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = open_session(model, "test", graph_optimization_level=level)
    return session.run(None, {"ids": ids})[0]


def _as_real(conversion: Conversion) -> onnx.ModelProto:
    """Return the graph in FP32 with the weights that the codes of its decisions stand for."""
    graph = Graph(copy_model(conversion.graph))
    for decision in (d for d in conversion.decisions if d.weights == "int4"):
        for tensor in decision.tensors:
            rows = np.moveaxis(graph.value(tensor), decision.axis, 0)
            blocks = conversion.codes.blocks(decision.output, rows)
            assert blocks is not None
            real = (blocks.wide() * blocks.scales[:, None]).reshape(rows.shape)
            back = np.ascontiguousarray(np.moveaxis(real, 0, decision.axis))
            graph.initializers[tensor].CopyFrom(numpy_helper.from_array(back, tensor))
    return graph.finish()


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_stored_weights_are_those_of_their_codes(chain: onnx.ModelProto, algorithm: str) -> None:
    recipe = _recipe({"weights": "int4", "algorithm": algorithm})
    recipe = recipe.model_copy(update={"calibration": Calibration()})
    conversion = prepared(chain, recipe, _CALLS, batch_one=False)
    made = convert(conversion)
    onnx.checker.check_model(made)
    assert count_operators(made) == {
        "Conv int4/none": 2,
        "ConvTranspose int4/none": 1,
        "Gather int4/none": 1,
        "LSTM int4/none": 1,
        "MatMul int4/none": 2,  # a Gemm is one, and an addition
    }
    assert sorted(conversion.chosen) == (["a", "d", "f", "h"] if algorithm == "gptq" else [])
    np.testing.assert_allclose(_run(made), _run(_as_real(conversion)), rtol=1e-4, atol=1e-5)
    assert len(made.SerializeToString()) < 0.5 * len(chain.SerializeToString())
    assert made.opset_import[0].version == 15


def test_gptq_keeps_more_of_the_output_than_rounding(chain: onnx.ModelProto) -> None:
    found = {}
    for algorithm in ("rtn", "gptq"):
        recipe = _recipe(
            {"weights": "int4", "algorithm": algorithm, "operators": ("Conv", "MatMul")}
        )
        conversion = prepared(chain, recipe, _CALLS, batch_one=False)
        found[algorithm] = snr_db(_run(chain), _run(convert(conversion)))
    assert found["gptq"] > found["rtn"] + 0.5


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_integer_kernels_multiply_the_codes(
    chain: onnx.ModelProto, activations: str, form: str
) -> None:
    if (activations, form) == ("dynamic", "qoperator"):
        pytest.skip("a form of static activations")
    operators = ("Conv", "ConvTranspose") if form == "qoperator" else ("Conv", "MatMul")
    rule = {"weights": "int4", "activations": activations, "operators": operators}
    conversion = prepared(chain, _recipe(rule, form=form), _CALLS, batch_one=False)
    made, promised = convert(conversion), count_decisions(conversion.decisions)
    assert count_operators(made) == promised
    assert promised[f"Conv int4/{activations}"] == (3 if form == "qoperator" else 2)
    # The rounding of activations is far below that of weights.
    real = _as_real(conversion) if form == "qdq" else chain
    assert snr_db(_run(real), _run(made)) > (20 if form == "qdq" else 8)


def test_what_blocks_do_not_divide_is_left_to_the_next_rule(chain: onnx.ModelProto) -> None:
    recipe = _recipe({"weights": "int4", "group_size": 64}, {"weights": "int8"})
    decisions = decide(prepare(copy_model(chain)), recipe)
    found = {d.output: str(d.weights) for d in decisions}
    # 48, 128, 160 and 32 inputs.
    assert (found["a"], found["c"], found["d"], found["f"]) == ("int8", "int4", "int8", "int8")


def test_blocks_divide_the_phases_of_upsampling() -> None:
    """In integers it is a convolution of fewer inputs: 24 where the weight has 96."""
    generator = np.random.default_rng(0)
    shapes = {"table": (256, 16), "first": (12, 16, 3), "up": (12, 20, 8), "last": (16, 20, 3)}
    tensors = {name: generator.normal(0, 0.2, shape) for name, shape in shapes.items()}
    nodes = [
        make_node("Gather", "table ids", "rows", "/net/table/Gather"),
        make_node("Transpose", "rows", "x", "/net/Transpose", perm=[0, 2, 1]),
        make_node("Conv", "x first", "a", "/net/first/Conv", pads=[1, 1]),
        make_node("ConvTranspose", "a up", "b", "/net/up/CT", strides=[4], pads=[2, 2]),
        make_node("Conv", "b last", "y", "/net/last/Conv", pads=[1, 1]),
    ]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [1, "t"])}, {"y": [1, 16, "t2"]}, tensors)
    rules = [{"weights": bits, "activations": "static"} for bits in ("int4", "int8")]
    conversion = prepared(model, _recipe(*rules, form="qoperator"), _CALLS)
    found = {d.output: str(d.weights) for d in conversion.decisions}
    assert found["b"] == "int8"
    assert count_operators(convert(conversion)) == count_decisions(conversion.decisions)
