"""A tiny NaturalSpeech2 model, compressed and evaluated by the commands that people type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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
utterances = [{ text = "Hello there." }, { text = "Good day." }]

[card]
summary = "s"
source = "s"
licence = "Apache-2.0"
composition = "c"
"""


@pytest.mark.slow
def test_a_compressed_model_is_evaluated_from_the_command_line(
    tmp_path: Path, tiny_ns2_dir: Path, amphion: Path
) -> None:
    """It speaks by the checkpoint's recording; workers find the clone by the option's setting."""
    pytest.importorskip("pocketsphinx")
    suite = tmp_path / "suite.toml"
    suite.write_text(_SUITE, encoding="utf-8")
    checkout = ["--checkout", str(amphion)]
    spec, small = f"naturalspeech2:{tiny_ns2_dir}?inference_step=2", str(tmp_path / "int8")
    assert main(["quantize", spec, "--scheme", "int8", "--output", small, *checkout]) == 0
    out = tmp_path / "report"
    arguments = [spec, small, "--suite", str(suite), "--output", str(out)]
    assert main(["evaluate", *arguments, *checkout]) == 0

    found = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert found["wer"]["counts"]["reference"]["reference_tokens"] == 4
    assert found["size"]["ratio"] > 1.5
    # The same noise and the same voice: what differs is what compression did.
    assert found["signal"]["same_timing"] == 1.0
    assert found["signal"]["snr_db"] > 15
    assert found["health"]["candidate"] == found["health"]["reference"]
    for side in ("reference", "candidate"):
        settings = found[side]["settings"]
        assert settings["solver"].startswith("2 steps")
        assert settings["recording"] == "reference.wav"
        assert len(settings["upstream commit"]) == 40
        assert found["memory"][side]["peak_bytes"] > found["memory"][side]["idle_bytes"]
    # The audio that the script would play differs.
    note = "dropout is off here, where the script leaves it on"
    for name in ("report.md", "report.html"):
        page = (out / name).read_text(encoding="utf-8")
        assert note in page
        assert page.index(note) < page.rindex("Provenance")  # above the details
        assert "not run alike" not in page
