"""Tensors that are channels-last on both sides are not transposed in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

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
    nodes: list[tuple[str, str, str, dict[str, Any]]] = [
        ("Conv", "x w0", "p", {}),
        ("Erf", "p", "e", {}),
        ("Conv", "e w1", "h", {}),
        ("Add", "e h", "r", {}),
        ("ReduceMean", "r", "mean", {"axes": [1]}),
        ("Sub", "r mean", "centred", {}),
        ("Pow", "centred two", "squared", {}),
        ("ReduceMean", "squared", "variance", {"axes": [1]}),
        ("Add", "variance epsilon", "above", {}),
        ("Sqrt", "above", "deviation", {}),
        ("Div", "centred deviation", "normal", {}),
        ("Mul", "normal scale", "scaled", {}),
        ("Add", "scaled shift", "n", {}),
        ("Conv", "n w2", "g", {"pads": [1, 1]}),
        ("Add", "n g", "y", {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), [o], o, **a) for op, i, o, a in nodes],
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, "time"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_a_residual_stream_is_turned_at_its_ends_only() -> None:
    model = _encoder()
    graph = Graph(copy_model(model))
    assert fuse_normalization(graph) == 1
    graph.finish()
    convolutions = frozenset({"p", "h", "g"})
    ranges = {"x": (-4.0, 4.0), "e": (-1.0, 1.0), "n": (-4.0, 4.0)}
    emit_integer(graph, convolutions, ranges)
    types = [node.op_type for node in graph.model.graph.node]
    assert types.count("MatMulIntegerToFloat") == 3
    # The input's codes, and both parts of the last sum, which the caller gets channels first.
    assert types.count("Transpose") == 3
    x = np.random.default_rng(1).normal(size=(1, 16, 29)).astype(np.float32)
    expected, found = _run(model, x), _run(graph.model, x)
    error = np.square(expected - found).mean()
    assert 10 * np.log10(np.square(expected).mean() / error) > 35
