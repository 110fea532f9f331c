"""A graph with operators that torch cannot compute here is trained behind them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_model, make_node

torch = pytest.importorskip("torch")

from tts_compress.compression import compress_trained  # noqa: E402
from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.models import open_model  # noqa: E402
from tts_compress.models.base import OnnxGraph  # noqa: E402
from tts_compress.onnx.session import open_session  # noqa: E402
from tts_compress.qat.graph.network import last_part  # noqa: E402
from tts_compress.qat.graph.operators import is_trainable  # noqa: E402
from tts_compress.qat.options import TrainingOptions, TrainingRun  # noqa: E402

_CHANNELS, _UNITS = 32, 64


def _voice() -> onnx.ModelProto:
    """Return a graph (1, 32, T) with an LSTM between convolutions, and lengths as an output."""
    generator = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        scale = np.prod(shape[1:]) ** -0.5
        return generator.normal(scale=scale, size=shape).astype(np.float32)

    constants: dict[str, Any] = {
        "before": weight(_CHANNELS, _CHANNELS, 3),
        "w": weight(2, 4 * _UNITS, _CHANNELS),
        "r": weight(2, 4 * _UNITS, _UNITS),
        "after": weight(_CHANNELS, 2 * _UNITS, 5),
        "last": weight(_CHANNELS, _CHANNELS, 5),
        "flat": np.array([1, 2 * _UNITS, -1], np.int64),
    }
    nodes = [
        make_node("Conv", "x before", "a", "/net/before/Conv", pads=[1, 1]),
        make_node("Transpose", "a", "turned", perm=[2, 0, 1]),
        make_node(
            "LSTM",
            "turned w r",
            "states",
            "/net/lstm/LSTM",
            direction="bidirectional",
            hidden_size=_UNITS,
        ),
        make_node("Transpose", "states", "back", perm=[2, 1, 3, 0]),
        make_node("Reshape", "back flat", "h"),
        make_node("Conv", "h after", "b", "/net/after/Conv", pads=[2, 2]),
        make_node("Tanh", "b", "c"),
        make_node("Conv", "c last", "y", "/net/last/Conv", pads=[2, 2]),
        make_node("Shape", "x", "lengths"),
    ]
    sizes: list[str | int] = [1, _CHANNELS, "t"]
    return make_model(
        nodes, {"x": sizes}, {"y": sizes, "lengths": (TensorProto.INT64, [3])}, constants, opset=17
    )


def test_the_part_begins_behind_what_torch_cannot_compute() -> None:
    part = last_part(_voice(), is_trainable, ["y"])
    assert part.inputs == ["states"]
    assert [node.op_type for node in part.model.graph.node if "/net/" in node.name] == [
        "Conv",
        "Conv",
    ]
    whole = last_part(_voice(), lambda _: True, ["y"])
    assert whole.inputs == ["x"]
    with pytest.raises(QuantizationError, match="output 'y' is made by an operator that cannot"):
        last_part(_voice(), lambda node: node.name != "/net/last/Conv", ["y"])


def test_it_is_trained_and_the_rest_is_compressed_all_the_same(tmp_path: Path) -> None:
    path, feeds = tmp_path / "voice.onnx", tmp_path / "feeds.npz"
    onnx.save(_voice(), path)
    generator = np.random.default_rng(1)
    calls = [generator.normal(size=(1, _CHANNELS, 50)).astype(np.float32) for _ in range(6)]
    arrays: dict[str, Any] = {f"{place}/x": call for place, call in enumerate(calls)}
    np.savez(feeds, **arrays)
    run = TrainingRun(options=TrainingOptions(steps=4))
    small = compress_trained(open_model(f"onnx:{path}"), "int8-qat", calibration=feeds, run=run)
    assert isinstance(small, OnnxGraph)
    graph = small.graph()
    kinds = {node.op_type for node in graph.graph.node}
    assert "DynamicQuantizeLSTM" in kinds
    assert kinds & {"QLinearConv", "MatMulIntegerToFloat"}
    expected, found = (
        open_session(model, "a voice").run(["y"], {"x": calls[0]})[0] for model in (_voice(), graph)
    )
    assert np.square(found - expected).mean() < 0.05 * np.square(expected).mean()
