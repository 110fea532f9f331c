"""A tiny F5-TTS model, compressed and evaluated by the commands that people type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.cli import main

if TYPE_CHECKING:
    from pathlib import Path

_SUITE = """
version = 1
name = "two-texts"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [3]
utterances = [{ text = "Hello there." }, { text = "Shut the gate." }]

[prompt]
audio = "voice.wav"
text = "six seven eight."

[card]
summary = "s"
source = "s"
licence = "Apache-2.0"
composition = "c"
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a suite with a voice of its own: a second and a half of a higher buzz."""
    pytest.importorskip("pocketsphinx")
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("suite")
    time = np.arange(36_000) / 24_000
    buzz = sum(np.sin(2 * np.pi * 190 * k * time) / k for k in range(1, 12))
    soundfile.write(folder / "voice.wav", 0.08 * buzz, 24_000)
    (folder / "suite.toml").write_text(_SUITE, encoding="utf-8")
    return folder / "suite.toml"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, tiny_f5_dir: Path) -> Path:
    """Return the tiny model in INT8, made by the command line."""
    target = tmp_path_factory.mktemp("artifacts") / "int8"
    assert main(["quantize", _spec(tiny_f5_dir), "--scheme", "int8", "--output", str(target)]) == 0
    return target


def _spec(folder: Path) -> str:
    return f"f5-tts:{folder}?nfe_step=2"


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_a_compressed_model_is_evaluated_from_the_command_line(
    tmp_path: Path, tiny_f5_dir: Path, artifact: Path, suite: Path
) -> None:
    """It speaks by the suite's voice; every file of the report is there."""
    arguments = [_spec(tiny_f5_dir), str(artifact), "--suite", str(suite), "--output"]
    out = tmp_path / "report"
    assert main(["evaluate", *arguments, str(out), "--wav"]) == 0
    assert {"report.html", "report.json", "report.md", "wav"} <= {p.name for p in out.iterdir()}
    found = _report(out)
    assert (found["suite"]["texts"], found["suite"]["seeds"]) == (2, [3])
    assert found["wer"]["counts"]["reference"]["reference_tokens"] == 5
    assert found["wer"]["interval"] is None  # of two texts
    assert found["size"]["ratio"] > 1.5
    # The same noise and the same voice: what differs is what compression did.
    assert found["signal"]["same_timing"] == 1.0
    assert found["signal"]["snr_db"] > 15
    assert found["teacher_forced"] is None
    settings = [found[side]["settings"] for side in ("reference", "candidate")]
    assert [how["solver"] for how in settings] == ["2 steps, guidance 2"] * 2
    assert [how["recording"] for how in settings] == ["voice.wav"] * 2
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "not run alike" not in page
    # Packages are imported before memory is first measured, so that the model is what is counted.
    for side in (found["memory"][name] for name in ("reference", "candidate")):
        assert 0 < side["model_bytes"] < 0.5 * side["peak_bytes"]
    for side in found["load"].values():
        assert 0 < side["open_ms"] < 30_000
