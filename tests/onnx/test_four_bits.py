"""Packed weights in a graph: what onnxruntime makes of them, and what others read."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.graphs import make_model, make_node
from tts_compress.numerics.weights import Blocks, round_blocks
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import WeightFinder
from tts_compress.onnx.quantize.prepare import optimize
from tts_compress.onnx.session import open_session
from tts_compress.onnx.weight_codes import EXPAND, has_even_blocks, store_blocks

_SHAPE = (24, 16, 3)


@pytest.fixture
def blocks() -> Blocks[Any]:
    """Return a weight of every code and factor."""
    weight = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    found = round_blocks(weight, 16)
    found.codes[0, :16] = np.arange(-8, 8)
    found.factors.reshape(-1)[:15] = [f for f in range(-8, 8) if f]
    return found


@pytest.fixture
def model(blocks: Blocks[Any]) -> onnx.ModelProto:
    """Return a convolution whose weight is packed, of 13 operator sets and no functions before."""
    edited = Graph(
        make_model(
            [make_node("Conv", "x w", "y", "/net/conv/Conv", pads=[1, 1])],
            {"x": ["b", 16, "t"]},
            {"y": ["b", 24, "t"]},
            {"w": np.zeros(_SHAPE, np.float32)},
            opset=13,
        )
    )
    codes = store_blocks(edited, "w", blocks, _SHAPE)
    assert store_blocks(edited, "w", blocks, _SHAPE) == codes  # once for all who share it
    scales = edited.add_constant("scales", blocks.scales)
    zeros = edited.add_constant("zeros", np.zeros(24, np.int8))
    wide = edited.insert("DequantizeLinear", [codes, scales, zeros], "wide", axis=0)
    edited.replace_input(edited.nodes[0], 1, wide)
    return edited.finish()


def test_runtime_unpacks_it_before_the_graph_runs(
    model: onnx.ModelProto, blocks: Blocks[Any]
) -> None:
    onnx.checker.check_model(model, full_check=True)
    assert Graph(model).opset() == 13
    optimized = optimize(model, fuse=True)
    assert {node.op_type for node in optimized.graph.node} == {"DequantizeLinear", "Conv"}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in optimized.graph.initializer}
    (codes,) = (value for value in stored.values() if value.shape == _SHAPE)
    assert codes.dtype == np.int8
    assert np.array_equal(codes, blocks.wide().reshape(_SHAPE))


def test_any_runtime_that_knows_functions_computes_the_same(model: onnx.ModelProto) -> None:
    # onnx's own runtime knows `DequantizeLinear` from 19 on.
    for opsets in (model.opset_import, model.functions[0].opset_import):
        opsets[0].version = 21
    signal = np.random.default_rng(1).standard_normal((1, 16, 9)).astype(np.float32)
    (ours,) = open_session(model, "test").run(None, {"x": signal})
    theirs: Any = next(iter(ReferenceEvaluator(model).run(None, {"x": signal})))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_its_weight_is_found_as_onnx_int4(model: onnx.ModelProto, blocks: Blocks[Any]) -> None:
    (node,) = (node for node in model.graph.node if node.op_type == "Conv")
    found = WeightFinder(model.graph).find(node)
    assert found is not None
    assert found.data_type == TensorProto.INT4
    assert tuple(found.dims) == _SHAPE
    codes = numpy_helper.to_array(found).astype(np.int8)
    assert np.array_equal(codes.reshape(blocks.codes.shape), blocks.codes)
    assert len(found.raw_data) == codes.size // 2
    assert sum(node.op_type == EXPAND for node in model.graph.node) == 1


@pytest.mark.parametrize(
    ("weights", "outputs", "even"),
    [(64, 2, True), (48, 3, False), (48, 1, False), (72, 2, False), (96, 4, False)],
)
def test_blocks_have_to_fill_channels_and_bytes(weights: int, outputs: int, even: bool) -> None:
    assert has_even_blocks(weights, outputs, 16) is even
