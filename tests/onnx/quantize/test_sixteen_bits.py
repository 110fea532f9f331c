"""Activations in 16 bits are rounded by operators that the graph's operator set has."""

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.rules import make_recipe
from tts_compress.errors import QuantizationError
from tts_compress.onnx.quantize.convert import Conversion, convert
from tts_compress.onnx.quantize.decisions import decide


def _convolution(opset: int, smallest: float = 1.0) -> onnx.ModelProto:
    """Return a convolution and an activation; the weights of a channel are smaller by a factor."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((8, 8, 3)), "b": np.full(8, 2.0)}
    weights["w"][3] *= smallest
    nodes = [make_node("Conv", "x w b", "y", "/a/Conv"), make_node("Relu", "y", "z", "/b/Relu")]
    return make_model(nodes, {"x": [1, 8, 20]}, {"z": [1, 8, 18]}, weights, opset=opset)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    rule = {"match": "a", "weights": "int8", "activations": "static"}
    decisions = tuple(decide(model, make_recipe(rule, format="qdq16")))
    ranges = {"x": (-1.0, 3.0), "y": (-60.0, 60.0)}
    conversion = Conversion(graph=model, decisions=decisions, ranges=ranges, form="qdq16")
    return convert(conversion)


def _distance(model: onnx.ModelProto, finished: onnx.ModelProto) -> float:
    feeds = {"x": np.random.default_rng(1).uniform(-1, 3, (1, 8, 20)).astype(np.float32)}
    return snr_db(*(run_model(each, feeds)[0] for each in (model, finished)))


@pytest.mark.parametrize(("opset", "domains"), [(17, {"", "com.microsoft"}), (21, {""})])
def test_operators_are_standard_where_the_operator_set_has_them(
    opset: int, domains: set[str]
) -> None:
    model = _convolution(opset)
    finished = _converted(model)
    assert {node.domain for node in finished.graph.node} == domains
    assert _distance(model, finished) > 40


def test_a_bias_without_a_code_is_refused() -> None:
    """Its step is that of the products: with weights near zero its code is beyond 32 bits."""
    with pytest.raises(QuantizationError, match="a bias of '/a/Conv' has no code"):
        _converted(_convolution(17, smallest=1e-9))
