"""The speed of a model over another's, and a warning where the compressed one is slower."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_model
from tts_compress.cli import main
from tts_compress.errors import ModelError
from tts_compress.inspection.components import speed_ratio
from tts_compress.models import load, open_model
from tts_compress.models.base import Model
from tts_compress.onnx.session import Feeds

_SIZE = 256


def _products(path: Path, count: int) -> Model:
    """Return a graph of so many matrix products, one behind the other."""
    weight = np.random.default_rng(0).normal(size=(_SIZE, _SIZE)).astype(np.float32) / 16
    nodes = [
        helper.make_node("MatMul", [f"h{i}" if i else "x", "w"], [f"h{i + 1}"])
        for i in range(count)
    ]
    shape: list[str | int] = ["t", _SIZE]
    onnx.save(make_model(nodes, {"x": shape}, {f"h{count}": shape}, {"w": weight}, opset=17), path)
    return open_model(f"onnx:{path}")


def test_forty_times_the_work_takes_longer(tmp_path: Path) -> None:
    """In either order: nothing is lost by being second."""
    one, many = _products(tmp_path / "one.onnx", 1), _products(tmp_path / "many.onnx", 40)
    feeds: Feeds = {"x": np.ones((200, _SIZE), np.float32)}
    fast, slow = speed_ratio(many, one, feeds), speed_ratio(one, many, feeds)
    assert fast is not None
    assert slow is not None
    assert fast > 2
    assert slow < 0.5


def test_what_cannot_run_by_itself_has_no_speed(tmp_path: Path, tiny_path: Path) -> None:
    graph = _products(tmp_path / "one.onnx", 1)
    assert speed_ratio(graph, graph) is None
    assert speed_ratio(graph, load(tiny_path)) is None


@pytest.mark.parametrize(("ratio", "warned"), [(0.65, True), (1.9, False), (None, False)])
def test_a_slower_model_is_remarked_when_it_is_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ratio: float | None,
    warned: bool,
) -> None:
    monkeypatch.setattr("tts_compress.inspection.components.speed_ratio", lambda *_: ratio)
    graph = _products(tmp_path / "one.onnx", 1).spec
    arguments = ["quantize", graph, "--scheme", "fp16", "--output", str(tmp_path / "x")]
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["speed_ratio"] == ratio
    assert ("slower than the original on this processor (0.65 times" in printed.err) is warned


def test_without_time_nothing_speaks(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["quantize", str(tiny_path), "--scheme", "fp16", "--output", str(tmp_path / "x")]
    assert main([*arguments, "--no-time", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speed_ratio"] is None


def test_a_voice_that_fails_while_it_is_timed_is_a_model_error(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own runtime raises errors of every kind."""
    voice = load(tiny_path)

    class Failing:
        def speak(self, text: str) -> None:
            raise RuntimeError(f"Non-zero status code for {text[:5]}")

    monkeypatch.setattr(type(voice), "open_runtime", lambda *_, **__: Failing())
    with pytest.raises(ModelError, match=r"cannot be run: Non-zero status code for Hello"):
        speed_ratio(voice, voice)
