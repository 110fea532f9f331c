"""Operators that share a weight, and have their outputs along different axes of it."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tts_compress.onnx.quantize.convert import convert
from tts_compress.recipes.recipe import find_recipe

_SIZE = 64


def _tied() -> onnx.ModelProto:
    """Build a square table that is looked up, and multiplied as it is and turned."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(_SIZE, _SIZE)) * np.exp(generator.normal(size=_SIZE)) / 8
    nodes = [
        make_node("Gather", "table ids", "rows"),
        make_node("Tanh", "rows", "a"),
        make_node("Gemm", "a table", "b", transB=1),
        make_node("Tanh", "b", "c"),
        make_node("MatMul", "c table", "d"),
        make_node("Gemm", "d table", "e", transB=1),
        make_node("MatMul", "e end", "y"),
    ]
    weights = {"table": table, "end": generator.normal(size=(_SIZE, 8)) / 8}
    return make_model(nodes, {"ids": (TensorProto.INT64, ["n"])}, {"y": ["n", 8]}, weights)


def _upsampling() -> onnx.ModelProto:
    """Build a filter that goes up by two, and down again."""
    generator = np.random.default_rng(0)
    shape = (_SIZE // 2, _SIZE // 2, 4)
    filter_ = generator.normal(size=shape) * np.exp(generator.normal(size=(shape[0], 1, 1))) / 16
    nodes = [
        make_node("Conv", "x begin", "a", pads=[1, 1]),
        make_node("ConvTranspose", "a filter bias", "b", strides=[2], pads=[1, 1]),
        make_node("LeakyRelu", "b", "c", alpha=0.1),
        make_node("Conv", "c filter bias", "d", strides=[2], pads=[1, 1]),
        make_node("Conv", "d end", "y", pads=[1, 1]),
    ]
    weights = {
        "filter": filter_,
        "bias": generator.normal(size=shape[0]) / 4,
        "begin": generator.normal(size=(shape[0], 4, 3)) / 4,
        "end": generator.normal(size=(8, shape[0], 3)) / 8,
    }
    return make_model(nodes, {"x": [1, 4, "t"]}, {"y": [1, 8, "t2"]}, weights)


def _ids(seed: int) -> dict[str, Any]:
    return {"ids": np.random.default_rng(seed).integers(0, _SIZE, 40)}


def _signal(seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=(1, 4, 60)).astype(np.float32)}


_LEAST_DB = {
    "int8": 26,
    "int8-static": 26,
    "int8-dynamic": 26,
    "int8-weight-only": 30,
    "int4-weight-only": 14,
    "int4-int8": 14,
    "fp16": 55,
    "bf16": 40,
}


@pytest.mark.parametrize("scheme", _LEAST_DB)
@pytest.mark.parametrize(("build", "call"), [(_tied, _ids), (_upsampling, _signal)])
def test_each_axis_has_scales_of_its_own(build: Any, call: Any, scheme: str) -> None:
    """Codes by rows were multiplied by the scales of columns: 0.4 dB, and nothing said so."""
    model, recipe = build(), find_recipe("onnx", scheme)
    converted = convert(prepared(model, recipe, make_calls(call), batch_one=False))
    before, after = (run_model(one, call(100))[0] for one in (model, converted))
    assert snr_db(before, after) > _LEAST_DB[scheme]


def test_one_form_is_stored_once() -> None:
    nodes = [make_node("MatMul", "x w", "a"), make_node("Tanh", "a", "b")]
    nodes += [make_node("MatMul", "b w", "c"), make_node("Tanh", "c", "y")]
    weights = {"w": np.random.default_rng(0).normal(size=(_SIZE, _SIZE)) / 8}
    model = make_model(nodes, {"x": ["n", _SIZE]}, {"y": ["n", _SIZE]}, weights)
    recipe = find_recipe("onnx", "int8-weight-only")
    converted = convert(prepared(model, recipe, make_calls(_signal), batch_one=False))
    assert sum(tensor.data_type == TensorProto.INT8 for tensor in converted.graph.initializer) == 2


@pytest.mark.parametrize(
    ("scheme", "bytes_each"), [("fp16", 2), ("bf16", 2), ("int8-weight-only", 1)]
)
def test_table_of_tokens_that_is_the_last_weight_too_is_stored_once(
    scheme: str, bytes_each: int
) -> None:
    """A graph has its transpose: FP16 was hardly smaller than FP32, where both were the same."""
    nodes = [make_node("Gather", "table ids", "rows"), make_node("Tanh", "rows", "a")]
    nodes += [make_node("Transpose", "table", "turned", perm=[1, 0])]
    nodes += [make_node("MatMul", "a turned", "y", "/head/MatMul")]
    table = np.random.default_rng(0).normal(size=(512, _SIZE)) / 8
    inputs = {"ids": (TensorProto.INT64, ["n"])}
    model = make_model(nodes, inputs, {"y": ["n", 512]}, {"table": table})
    recipe = find_recipe("onnx", scheme)
    converted = convert(prepared(model, recipe, make_calls(_ids), batch_one=False))
    stored = sum(len(tensor.raw_data) for tensor in converted.graph.initializer)
    assert bytes_each * table.size <= stored < 1.1 * bytes_each * table.size
    before, after = (run_model(one, _ids(100))[0] for one in (model, converted))
    assert snr_db(before, after) > 35


@pytest.mark.parametrize(
    ("scheme", "whole"), [("int8", 64), ("int4-int8", 32), ("int8-static", 64)]
)
def test_weight_of_several_convolutions_is_stored_once(scheme: str, whole: int) -> None:
    """Codes were written for each of them: four times in a network that goes through one layer."""
    nodes = []
    for index in range(4):
        nodes += [make_node("Conv", f"h{index} w bias", f"a{index}", pads=[1, 1])]
        nodes += [make_node("LeakyRelu", f"a{index}", f"h{index + 1}", alpha=0.1)]
    nodes += [make_node("Conv", "h4 end", "y")]
    random = np.random.default_rng(0)
    shapes = {"w": (_SIZE, _SIZE, 3), "bias": (_SIZE,), "end": (1, _SIZE, 1)}
    weights = {name: random.normal(size=s) / 8 for name, s in shapes.items()}
    model = make_model(nodes, {"h0": [1, _SIZE, "t"]}, {"y": [1, 1, "t"]}, weights)

    def call(seed: int) -> dict[str, Any]:
        return {"h0": np.random.default_rng(seed).normal(size=(1, _SIZE, 50)).astype(np.float32)}

    recipe = find_recipe("onnx", scheme)
    converted = convert(prepared(model, recipe, make_calls(call), batch_one=False))
    stored = sum(len(tensor.raw_data) for tensor in converted.graph.initializer)
    # The first reads the graph's input, and has a form of its own in some schemes.
    assert 3 * _SIZE * whole < stored < 2.5 * 3 * _SIZE * whole
    before, after = (run_model(one, call(100))[0] for one in (model, converted))
    assert snr_db(before, after) > _LEAST_DB[scheme] - 6
