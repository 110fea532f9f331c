"""A voice that decides how long it speaks is trained to speak as long as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch")

from tts_compress.compression import compress_trained  # noqa: E402
from tts_compress.models import open_model  # noqa: E402
from tts_compress.models.base import OnnxGraph  # noqa: E402
from tts_compress.onnx.precision import length_outputs  # noqa: E402
from tts_compress.qat.graph.subgraph import find_passage, last_part  # noqa: E402
from tts_compress.qat.options import TrainingOptions, TrainingRun  # noqa: E402
from tts_compress.qat.trainer import read_log  # noqa: E402

_CHANNELS = 32
_SIZES: list[str | int] = [1, _CHANNELS, "tokens"]


def _voice(*, local: bool = True) -> onnx.ModelProto:
    """Return a graph (1, 32, N) → (1, samples): an encoder, predicted frames, a decoder.

    Args:
        local: False for a decoder that each frame reaches everywhere in.
    """
    draw = np.random.default_rng(0)

    def weight(*shape: int, gain: float = 1.0) -> Any:
        scale = gain * np.prod(shape[1:]) ** -0.5
        return draw.normal(scale=scale, size=shape).astype(np.float32)

    constants: dict[str, Any] = {
        "net.encode.weight": weight(_CHANNELS, _CHANNELS, 3),
        # Frames from one to thirty or so: a little rounding moves some of them.
        "net.predict.weight": weight(1, _CHANNELS, 3, gain=4.0),
        "net.fill.weight": weight(_CHANNELS, _CHANNELS, 3),
        "net.decode.weight": weight(_CHANNELS, _CHANNELS, 5),
        "net.up.weight": weight(_CHANNELS, 1, 32, gain=0.2),
        "one": np.array(1, np.int64),
        "zero": np.array(0, np.int64),
        "axis": np.array(2, np.int64),
        "row": np.array([1], np.int64),
        "flat": np.array([-1], np.int64),
        "batch": np.array([1, -1], np.int64),
        "least": np.array(1, np.float32),
        "most": np.array(30, np.float32),
    }

    def conv(source: str, name: str, made: str, pad: int) -> onnx.NodeProto:
        inputs = [source, f"net.{name}.weight"]
        return helper.make_node("Conv", inputs, [made], f"/net/{name}/Conv", pads=[pad, pad])

    def node(kind: str, inputs: list[str], made: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [made], f"/net/{made}", **attributes)

    nodes = [
        conv("x", "encode", "e", 1),
        node("Tanh", ["e"], "encoded"),
        conv("encoded", "predict", "p", 1),
        node("Exp", ["p"], "real"),
        node("Clip", ["real", "least", "most"], "clipped"),
        node("Round", ["clipped"], "frames"),
        node("Cast", ["frames"], "whole", to=TensorProto.INT64),
        node("Reshape", ["whole", "flat"], "counts"),
        node("CumSum", ["counts", "zero"], "ends"),
        node("Gather", ["ends", "flat"], "last"),
        node("Squeeze", ["last"], "total"),
        node("Range", ["zero", "total", "one"], "places"),
        node("Unsqueeze", ["places", "row"], "column"),
        node("GreaterOrEqual", ["column", "ends"], "behind"),
        node("Cast", ["behind"], "steps", to=TensorProto.INT64),
        node("ReduceSum", ["steps", "row"], "index", keepdims=0),
        conv("encoded", "fill", "filled", 1),
        node("Gather", ["filled", "index"], "spread", axis=2),
        conv("spread", "decode", "d", 2),
        node("Tanh", ["d"], "decoded"),
        *([] if local else [node("Softmax", ["decoded"], "shares", axis=2)]),
        helper.make_node(
            "ConvTranspose",
            ["decoded" if local else "shares", "net.up.weight"],
            ["u"],
            "/net/up/ConvTranspose",
            strides=[16],
            pads=[8, 8],
        ),
        node("Tanh", ["u"], "wave"),
        node("Reshape", ["wave", "batch"], "audio"),
    ]
    graph = helper.make_graph(
        nodes,
        "voice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, _SIZES)],
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, [1, "samples"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that trains the voice, and returns it with the number of updates."""

    def train(*, local: bool) -> tuple[OnnxGraph, int]:
        path, feeds, log = (tmp_path / name for name in ("voice.onnx", "feeds.npz", "log"))
        onnx.save(_voice(local=local), path)
        draw = np.random.default_rng(1)
        calls = [draw.normal(size=(1, _CHANNELS, 20)).astype(np.float32) for _ in range(6)]
        arrays: dict[str, Any] = {f"{place}/x": call for place, call in enumerate(calls)}
        np.savez(feeds, **arrays)
        options = TrainingOptions(steps=8, learning_rate=3e-3, held_out_every=4)
        run = TrainingRun(options=options, folder=log)
        small = compress_trained(open_model(f"onnx:{path}"), calibration=feeds, run=run)
        assert isinstance(small, OnnxGraph)
        return small, sum(event["event"] == "update" for event in read_log(log))

    return train


@pytest.mark.parametrize("local", [True, False])
def test_a_voice_learns_whose_lengths_rounding_moves(train: Any, *, local: bool) -> None:
    """Outputs of two lengths could not be compared."""
    small, updates = train(local=local)
    assert updates == 8
    assert small.manifest is not None
    assert small.manifest.counts.get("Conv int8/static")


def test_sound_begins_behind_the_tensor_that_all_of_it_passes() -> None:
    model = _voice()
    deciding = length_outputs(model)
    part = last_part(model, lambda node: deciding.isdisjoint(node.output), ["audio"])
    assert part.inputs == ["encoded", "ends", "total"]
    assert find_passage(part) == "spread"
    assert find_passage(last_part(model, lambda _: True, ["d"])) == "e"
    assert find_passage(last_part(model, lambda _: True, ["e"])) is None
