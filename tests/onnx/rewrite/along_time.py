"""Small graphs along time, before and after a rewrite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.graphs import make_model, run_model
from tts_compress.onnx.graph import Graph, copy_model


def build(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Any] | None = None,
    batch: int | str = "batch_size",
) -> onnx.ModelProto:
    """Return a graph from x (B, 4, T) to y; weights are seeded noise."""
    generator = np.random.default_rng(0)
    values = {name: generator.normal(size=shape) for name, shape in weights.items()}
    inputs = {"x": [batch, 4, "time"], "lengths": (TensorProto.INT64, [batch])}
    return make_model(nodes, inputs, {"y": None}, values | {**(constants or {})})


def run(model: onnx.ModelProto, length: int, batch: int = 1) -> np.ndarray:
    """Return what such a graph makes of seeded noise of a length."""
    x = np.random.default_rng(length).normal(size=(batch, 4, length)).astype(np.float32)
    feeds = {"x": x, "lengths": np.full(batch, length, np.int64)}
    needed = {value.name for value in model.graph.input}
    return np.asarray(run_model(model, {k: v for k, v in feeds.items() if k in needed})[0])


def rewritten(
    rewrite: Callable[[Graph], int], model: onnx.ModelProto, count: int = 1
) -> onnx.ModelProto:
    """Return a graph with so many places rewritten; it agrees to 1e-5 of the largest value."""
    graph = Graph(copy_model(model))
    assert rewrite(graph) == count
    after = graph.finish()
    for length in (1, 7, 32):
        expected, result = run(model, length), run(after, length)
        assert expected.shape == result.shape
        assert np.abs(expected - result).max() <= 1e-5 * np.abs(expected).max()
    return after
