"""Small graphs with weights of every kind, and decisions about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.recipes.recipe import Calibration, Recipe, Rule

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def chain() -> onnx.ModelProto:
    """Two convolutions, an activation, a transposed convolution and a product, `[B, 8, T]` in."""
    generator = np.random.default_rng(0)
    shapes = {"one": (16, 8, 3), "two": (16, 16, 5), "up": (16, 8, 4), "matrix": (8, 6)}
    tensors = {f"{n}.weight": generator.normal(0, 0.2, s) for n, s in shapes.items()}
    tensors |= {f"{n}.bias": generator.normal(0, 0.2, 16) for n in ("one", "two")}
    nodes = [
        helper.make_node(
            "Conv", ["x", "one.weight", "one.bias"], ["a"], "/net/one/Conv", pads=[1, 1]
        ),
        helper.make_node("LeakyRelu", ["a"], ["b"], "/net/LeakyRelu", alpha=0.1),
        helper.make_node(
            "Conv", ["b", "two.weight", "two.bias"], ["c"], "/net/two/Conv", pads=[2, 2]
        ),
        helper.make_node("Add", ["b", "c"], ["d"], "/net/Add"),
        helper.make_node("ConvTranspose", ["d", "up.weight"], ["e"], "/net/up/CT", strides=[2]),
        helper.make_node("Transpose", ["e"], ["f"], "/net/Transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["f", "matrix.weight"], ["y"], "/net/matrix/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 8, "t"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "t2", 6])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@pytest.fixture
def decided(chain: onnx.ModelProto) -> Callable[..., tuple[onnx.ModelProto, list[Any]]]:
    """Prepare the chain and decide about it with one rule per argument."""

    def make(*rules: dict[str, Any], model: onnx.ModelProto = chain) -> Any:
        component = tuple(Rule(**{"match": "*", "weights": "int8", **rule}) for rule in rules)
        static = any(rule.activations == "static" for rule in component)
        recipe = Recipe(
            version=1,
            family="piper",
            scheme="int8",
            summary="test",
            calibration=Calibration() if static else None,
            component=component,
        )
        graph = prepare(copy_model(model))
        return graph, decide(graph, recipe)

    return make


@pytest.fixture
def signal() -> Any:
    """An input of the chain."""
    return np.random.default_rng(1).normal(size=(1, 8, 40)).astype(np.float32)
