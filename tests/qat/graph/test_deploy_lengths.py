"""A voice that decides how long it speaks is trained to speak as long as before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_model, make_node

torch = pytest.importorskip("torch")

from tts_compress.compression import compress_trained  # noqa: E402
from tts_compress.models import open_model  # noqa: E402
from tts_compress.models.base import OnnxGraph  # noqa: E402
from tts_compress.onnx.precision import length_outputs  # noqa: E402
from tts_compress.qat.graph.network import find_passage, last_part  # noqa: E402
from tts_compress.qat.options import TrainingOptions, TrainingRun  # noqa: E402
from tts_compress.qat.trainer import read_log  # noqa: E402

_CHANNELS = 32
_SIZES: list[str | int] = [1, _CHANNELS, "tokens"]

_UP = {"strides": [16], "pads": [8, 8]}


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
        return make_node(
            "Conv", f"{source} net.{name}.weight", made, f"/net/{name}/Conv", pads=[pad, pad]
        )

    last = "decoded" if local else "shares"
    nodes = [
        conv("x", "encode", "e", 1),
        make_node("Tanh", "e", "encoded"),
        conv("encoded", "predict", "p", 1),
        make_node("Exp", "p", "real"),
        make_node("Clip", "real least most", "clipped"),
        make_node("Round", "clipped", "frames"),
        make_node("Cast", "frames", "whole", to=TensorProto.INT64),
        make_node("Reshape", "whole flat", "counts"),
        make_node("CumSum", "counts zero", "ends"),
        make_node("Gather", "ends flat", "last"),
        make_node("Squeeze", "last", "total"),
        make_node("Range", "zero total one", "places"),
        make_node("Unsqueeze", "places row", "column"),
        make_node("GreaterOrEqual", "column ends", "behind"),
        make_node("Cast", "behind", "steps", to=TensorProto.INT64),
        make_node("ReduceSum", "steps row", "index", keepdims=0),
        conv("encoded", "fill", "filled", 1),
        make_node("Gather", "filled index", "spread", axis=2),
        conv("spread", "decode", "d", 2),
        make_node("Tanh", "d", "decoded"),
        *([] if local else [make_node("Softmax", "decoded", "shares", axis=2)]),
        make_node("ConvTranspose", f"{last} net.up.weight", "u", "/net/up/ConvTranspose", **_UP),
        make_node("Tanh", "u", "wave"),
        make_node("Reshape", "wave batch", "audio"),
    ]
    return make_model(nodes, {"x": _SIZES}, {"audio": [1, "samples"]}, constants, opset=17)


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
