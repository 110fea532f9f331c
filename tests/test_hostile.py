"""Input that broke something once, and is refused in one line since."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import make_node
from tts_compress.cli import main
from tts_compress.config import demo_voice
from tts_compress.errors import EvaluationError, ModelError, QuantizationError, RecipeError
from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.gates import Gate
from tts_compress.models.feeds import GraphInput, graph_inputs, open_feeds
from tts_compress.models.graph_file import read_graph
from tts_compress.models.piper import PiperModel
from tts_compress.qat.options import TrainingOptions

_INPUT = {"x": GraphInput(name="x", dtype=np.dtype("f4"), shape=(1, 16, "time"))}


def _voice(folder: Path, **changes: dict[str, Any]) -> Path:
    """Write the demo voice with some sections of its configuration changed."""
    path = folder / "voice.onnx"
    shutil.copyfile(demo_voice(), path)
    config = json.loads(demo_voice().with_name("demo.onnx.json").read_text("utf-8"))
    for section, values in changes.items():
        config[section] |= values
    path.with_name("voice.onnx.json").write_text(json.dumps(config), "utf-8")
    return path


def _npz(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _npy(array: np.ndarray[Any, Any], stated: str = "") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue().replace(b"(1, 16, 2)", stated.encode()) if stated else file.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        ["synthesize", "demo", "hi", "--output", "x" * 300],
        ["quantize", "demo", "--output", "x" * 250],
        ["evaluate", "demo", "demo", "--output", "x" * 300],
        ["qat", "demo", "--output", "x" * 300],
        ["gate", "x" * 300],
        ["gate", "x/" * 3_000],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_path_that_is_none_is_refused_first(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """They were tracebacks, some after minutes of work."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "is no path: File name too long" in capsys.readouterr().err


def test_numbers_beyond_reason_are_refused() -> None:
    with pytest.raises(EvaluationError, match="threads is 1099511627776; at most 4096"):
        EvaluationOptions(threads=1 << 40)
    for name in ("threads", "steps", "seed"):
        with pytest.raises(QuantizationError, match=f"{name} is 1267650600228229401496703205376"):
            TrainingOptions(**{name: 1 << 100})  # type: ignore[arg-type]


def test_a_wav_replaces_no_other_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    """A model was overwritten by what it spoke."""
    path = _voice(tmp_path)
    before = path.read_bytes()
    assert "is no WAV file, so it is not replaced" in refused(
        "synthesize", path, "hi", "--output", path, "--force"
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["length_scale", "noise_scale", "noise_w"])
def test_scales_of_a_voice_are_bounded(tmp_path: Path, name: str) -> None:
    """A length of 1000 made a word take 5 GB and minutes."""
    with pytest.raises(ModelError, match=f"inference.{name}: .* less than or equal to 10"):
        PiperModel(_voice(tmp_path, inference={name: 1000}), spec="voice")


@pytest.mark.slow
def test_controls_in_a_voice_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _voice(tmp_path, espeak={"voice": "\x1b[31mred\x9b"}, language={"code": ""})
    assert main(["inspect", str(path), "--no-time"]) == 0
    out = capsys.readouterr().out
    assert "language [31mred," in out


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"0/x.npy": _npy(np.ones((1, 16, 2), "f4"), "(1, 16, 16777216)")}, "more than 67108864"),
        ({"0/x.npy": _npy(np.ones((1, 16, 2), "f4"), "(1, 16, -1)")}, "whole numbers"),
        ({"0/x.npy": _npy(np.ones((1, 16, 2), "f4"), f"(1, {1 << 62}, 2)")}, "more than 67108864"),
        ({"0/x.npy": _npy(np.zeros((1, 16, 2), "f4"))}, "every number is zero"),
        ({"0/x": b"raw"}, "holds '0/x', which is no array"),
        ({"0/x.npy": b"raw"}, "cannot read"),
        ({"0/x.npy": b"\x93NUMPY\x09\x00"}, "cannot read"),
    ],
)
def test_arrays_that_lie_are_refused_unread(
    tmp_path: Path, members: dict[str, bytes], problem: str
) -> None:
    """A file of 1 MB took 13 GB; a member that is no array was a traceback."""
    path = _npz(tmp_path / "calls.npz", members)
    with pytest.raises(RecipeError, match=problem) as caught:
        open_feeds(path, _INPUT)
    assert "\n" not in str(caught.value)


def test_graphs_that_lie_are_refused(tmp_path: Path) -> None:
    """An unknown type of an input was a traceback; without outputs nothing was spoken."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    node = make_node("Identity", "x", "y")
    model = helper.make_model(helper.make_graph([node], "g", [value], []))
    onnx.save(model, tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="without outputs"):
        read_graph(tmp_path / "none.onnx")
    model.graph.input[0].type.tensor_type.elem_type = 77
    with pytest.raises(ModelError, match=r"input 'x' .* no tensor of a known type"):
        graph_inputs(model)


@pytest.mark.parametrize(
    ("metric", "document"),
    [
        ("wer", {"wer": 10**400}),
        ("wer", {"wer": -(10**400)}),
        (f"wer.{'1' * 5_000}", {"wer": [1, 2]}),
        ("wer.\u0662", {"wer": [1, 2]}),
    ],
)
def test_a_gate_on_what_is_no_number_fails(metric: str, document: dict[str, Any]) -> None:
    """Numbers that no float holds were tracebacks."""
    gate = Gate(metric=metric, limit=1.0, direction="at-most", kind="absolute")
    assert gate.value(document) is None
