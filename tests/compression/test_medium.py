"""The bars for a voice of Piper's medium size: how small on disk and in memory, in equal time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.measures import graph_bytes
from tts_compress.compression import compress
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds

_MEDIUM = {
    "inter_channels": 192,
    "hidden_channels": 192,
    "filter_channels": 768,
    "n_layers": 6,
    "upsample_initial_channel": 256,
}

# Random weights give a frame or two per id; trained voices speak about two and a half.
_SCALES = np.array([0.667, 2.0, 0.8], np.float32)

_FEEDS = {
    "input": np.random.default_rng(0).integers(1, 130, size=(1, 170)),
    "input_lengths": np.array([170]),
    "scales": _SCALES,
}
"""About 5 s of speech."""


@pytest.fixture(scope="module")
def medium(
    tmp_path_factory: pytest.TempPathFactory,
    make_checkpoint: Callable[..., dict[str, Any]],
    voice_config: dict[str, Any],
) -> Path:
    """Return the `.onnx` of a voice of medium size with seeded random weights."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("medium")
    checkpoint = folder / "medium.ckpt"
    torch.save(make_checkpoint(**_MEDIUM), checkpoint)
    config = voice_config | {"audio": {"sample_rate": 22_050, "quality": "medium"}}
    checkpoint.with_name("medium.ckpt.json").write_text(json.dumps(config), encoding="utf-8")
    return load(checkpoint).save(folder / "voice") / "medium.onnx"


@pytest.fixture(scope="module")
def small(
    medium: Path, tmp_path_factory: pytest.TempPathFactory, quick_recipe: Callable[[str], Path]
) -> Path:
    """Return the `.onnx` of the same voice in `int8`."""
    voice = compress(medium, "int8", recipe=quick_recipe("int8"), quality="fast")
    return voice.save(tmp_path_factory.mktemp("small") / "voice") / "medium.onnx"


def _until_durations(path: Path) -> onnxruntime.InferenceSession:
    """Open the part of a voice that decides how many frames each id takes; noise is fed."""
    model = feed_noise(onnx.load(path))
    ceil = next(node for node in model.graph.node if node.op_type == "Ceil")
    del model.graph.output[:]
    model.graph.output.append(helper.make_empty_tensor_value_info(ceil.output[0]))
    wanted, nodes = {ceil.output[0]}, []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def _frames(path: Path, calls: list[Feeds]) -> np.ndarray:
    """Return the frames of every id of some utterances, with equal noise for every voice."""
    session = _until_durations(path)
    names = [value.name for value in session.get_inputs()]
    frames = []
    for number, call in enumerate(calls):
        feeds = call | {"scales": _SCALES} | draw_noise(names, seed=(1, number))
        (found,) = session.run(None, {name: feeds[name] for name in names})
        frames.append(found.reshape(-1))
    return np.concatenate(frames)


@pytest.mark.slow
def test_durations_hold(medium: Path, small: Path) -> None:
    voice: Any = load(medium)
    texts = [utterance.text for utterance in read_suite("en-full").utterances[:60]]
    calls = list(voice.calibration_calls(texts, seed=1))
    before, after = _frames(medium, calls), _frames(small, calls)
    assert before.size >= 5_000
    assert np.mean(before == after) >= 0.99
    assert abs(after.sum() / before.sum() - 1) <= 0.005


@pytest.mark.slow
def test_int8_takes_a_quarter_on_disk_and_half_the_memory(
    medium: Path, small: Path, tmp_path: Path
) -> None:
    """Neither is in stages: the loop within the graph does it, in plain onnxruntime."""
    assert medium.stat().st_size > 60e6
    assert small.stat().st_size <= 16.5e6
    feeds: Any = _FEEDS
    np.savez(tmp_path / "feeds.npz", **feeds)
    assert (
        graph_bytes(small, tmp_path / "feeds.npz") < graph_bytes(medium, tmp_path / "feeds.npz") / 2
    )
