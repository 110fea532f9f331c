"""Small graphs with weights of every kind, and decisions about them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node
from tests.rules import make_recipe
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.quantize.prepare import prepare


@pytest.fixture
def chain() -> onnx.ModelProto:
    """Two convolutions, an activation, a transposed convolution and a product, `[B, 8, T]` in."""
    generator = np.random.default_rng(0)
    shapes = {"one": (16, 8, 3), "two": (16, 16, 5), "up": (16, 8, 4), "matrix": (8, 6)}
    tensors = {f"{n}.weight": generator.normal(0, 0.2, s) for n, s in shapes.items()}
    tensors |= {f"{n}.bias": generator.normal(0, 0.2, 16) for n in ("one", "two")}
    nodes = [
        make_node("Conv", "x one.weight one.bias", "a", "/net/one/Conv", pads=[1, 1]),
        make_node("LeakyRelu", "a", "b", "/net/LeakyRelu", alpha=0.1),
        make_node("Conv", "b two.weight two.bias", "c", "/net/two/Conv", pads=[2, 2]),
        make_node("Add", "b c", "d", "/net/Add"),
        make_node("ConvTranspose", "d up.weight", "e", "/net/up/CT", strides=[2]),
        make_node("Transpose", "e", "f", "/net/Transpose", perm=[0, 2, 1]),
        make_node("MatMul", "f matrix.weight", "y", "/net/matrix/MatMul"),
    ]
    return make_model(nodes, {"x": ["b", 8, "t"]}, {"y": ["b", "t2", 6]}, tensors)


@pytest.fixture
def decided(chain: onnx.ModelProto) -> Callable[..., tuple[onnx.ModelProto, list[Any]]]:
    """Prepare the chain and decide about it with one rule per argument."""

    def make(*rules: dict[str, Any], model: onnx.ModelProto = chain) -> Any:
        recipe = make_recipe(*rules, family="piper")
        graph = prepare(copy_model(model))
        return graph, decide(graph, recipe)

    return make


@pytest.fixture
def signal() -> Any:
    """An input of the chain."""
    return np.random.default_rng(1).normal(size=(1, 8, 40)).astype(np.float32)
