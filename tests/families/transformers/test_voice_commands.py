"""Voices of transformers, by the commands that people type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tts_compress import read_report
from tts_compress.cli import main

if TYPE_CHECKING:
    from pathlib import Path

_SUITE = """
version = 1
name = "two-texts"
language = "{language}"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [3]
utterances = [{{ text = "Hello there." }}, {{ text = "Shut the gate." }}]

[card]
summary = "s"
source = "s"
licence = "Apache-2.0"
composition = "c"
"""


@pytest.mark.slow
def test_a_compressed_voice_is_evaluated_from_the_command_line(
    tmp_path: Path, vits_dir: Path
) -> None:
    pytest.importorskip("pocketsphinx")
    (tmp_path / "suite.toml").write_text(_SUITE.format(language="en-us"), encoding="utf-8")
    spec, small = f"transformers:{vits_dir}", tmp_path / "int8"
    assert main(["quantize", spec, "--scheme", "int8", "--output", str(small)]) == 0
    out = tmp_path / "report"
    suite = ["--suite", str(tmp_path / "suite.toml"), "--output", str(out)]
    assert main(["evaluate", spec, str(small), *suite]) == 0
    found = read_report(out)
    assert found.size.ratio > 1.5
    assert found.reference.language == "eng"
    assert found.candidate.scheme == "int8"


def test_a_suite_of_another_language_is_refused(
    tmp_path: Path, vits_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pocketsphinx")
    (tmp_path / "suite.toml").write_text(_SUITE.format(language="de"), encoding="utf-8")
    spec = f"transformers:{vits_dir}"
    suite = ["--suite", str(tmp_path / "suite.toml"), "--output", str(tmp_path / "report")]
    assert main(["evaluate", spec, spec, *suite]) == 2
    assert "speaks 'eng', and suite 'two-texts' is in 'de'" in capsys.readouterr().err


def test_a_voice_is_inspected(vits_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"transformers:{vits_dir}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = json.dumps(found)
    for part in ("duration predictor", "flow", "decoder", "16000 Hz", "eng"):
        assert part in text
