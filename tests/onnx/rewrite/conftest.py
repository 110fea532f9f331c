"""Small graphs along time, run by onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx


@pytest.fixture
def build() -> Callable[..., onnx.ModelProto]:
    """Return a function that makes a graph from x (B, 4, T) to y; weights are seeded noise."""

    def make(
        nodes: Sequence[onnx.NodeProto],
        weights: dict[str, tuple[int, ...]],
        constants: dict[str, np.ndarray] | None = None,
        batch: int | str = "batch_size",
    ) -> onnx.ModelProto:
        generator = np.random.default_rng(0)
        values = {n: generator.normal(size=s).astype(np.float32) for n, s in weights.items()}
        values |= constants or {}
        graph = helper.make_graph(
            list(nodes),
            "test",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, "time"]),
                helper.make_tensor_value_info("lengths", TensorProto.INT64, [batch]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in values.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)

    return make


@pytest.fixture
def run() -> Callable[..., np.ndarray]:
    """Return a function that runs such a graph on seeded noise of a length."""

    def call(model: onnx.ModelProto, length: int, batch: int = 1) -> np.ndarray:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        content = model.SerializeToString()
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        x = np.random.default_rng(length).normal(size=(batch, 4, length)).astype(np.float32)
        feeds: dict[str, Any] = {"x": x, "lengths": np.full(batch, length, np.int64)}
        needed = {value.name for value in session.get_inputs()}
        return np.asarray(session.run(["y"], {k: v for k, v in feeds.items() if k in needed})[0])

    return call


@pytest.fixture
def equal(run: Callable[..., np.ndarray]) -> Callable[..., None]:
    """Return a function that asserts that two graphs agree to 1e-5 of the largest value."""

    def check(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
        for length in (1, 7, 32):
            expected, found = run(before, length), run(after, length)
            assert expected.shape == found.shape
            assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()

    return check
