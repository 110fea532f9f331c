"""Tensors that are channels-last on both sides are not transposed in between."""

import numpy as np
import onnx

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.measures import snr_db
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import emit_integer
from tts_compress.onnx.rewrite.normalization import fuse_normalization


def _encoder() -> onnx.ModelProto:
    """Return projections, a residual sum, a normalization of channels, a convolution, a sum."""
    generator = np.random.default_rng(0)
    constants = {
        "w0": generator.normal(scale=0.2, size=(16, 16, 1)),
        "w1": generator.normal(scale=0.2, size=(16, 16, 1)),
        "w2": generator.normal(scale=0.2, size=(16, 16, 3)),
        "scale": generator.normal(loc=1.0, scale=0.1, size=(1, 16, 1)),
        "shift": generator.normal(scale=0.1, size=(1, 16, 1)),
        "two": np.array(2.0),
        "epsilon": np.array(1e-5),
    }
    nodes = [
        make_node("Conv", "x w0", "p"),
        make_node("Erf", "p", "e"),
        make_node("Conv", "e w1", "h"),
        make_node("Add", "e h", "r"),
        make_node("ReduceMean", "r", "mean", axes=[1]),
        make_node("Sub", "r mean", "centred"),
        make_node("Pow", "centred two", "squared"),
        make_node("ReduceMean", "squared", "variance", axes=[1]),
        make_node("Add", "variance epsilon", "above"),
        make_node("Sqrt", "above", "deviation"),
        make_node("Div", "centred deviation", "normal"),
        make_node("Mul", "normal scale", "scaled"),
        make_node("Add", "scaled shift", "n"),
        make_node("Conv", "n w2", "g", pads=[1, 1]),
        make_node("Add", "n g", "y"),
    ]
    return make_model(nodes, {"x": [1, 16, "time"]}, {"y": None}, constants)


def test_a_residual_stream_is_turned_at_its_ends_only() -> None:
    model = _encoder()
    graph = Graph(copy_model(model))
    assert fuse_normalization(graph) == 1
    graph.finish()
    convolutions = frozenset({"p", "h", "g"})
    ranges = {"x": (-4.0, 4.0), "e": (-1.0, 1.0), "n": (-4.0, 4.0)}
    emit_integer(graph, convolutions, ranges)
    types = operators_of(graph.model)
    assert types.count("MatMulIntegerToFloat") == 3
    # The input's codes, and both parts of the last sum, which the caller gets channels first.
    assert types.count("Transpose") == 3
    x = np.random.default_rng(1).normal(size=(1, 16, 29)).astype(np.float32)
    expected, result = (run_model(m, {"x": x})[0] for m in (model, graph.model))
    assert snr_db(expected, result) > 35
