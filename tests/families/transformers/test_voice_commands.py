"""Voices of transformers, by the commands that people type."""

import json
from pathlib import Path

import pytest

from tests.families.conformance import write_suite
from tts_compress.cli import main


def test_a_suite_of_another_language_is_refused(
    tmp_path: Path, vits_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pocketsphinx")
    suite_file = write_suite(tmp_path, ["Guten Tag."])
    german = suite_file.read_text("utf-8").replace('"en-us"', '"de"')
    suite_file.write_text(german, encoding="utf-8")
    spec = f"transformers:{vits_dir}"
    suite = ["--suite", str(suite_file), "--output", str(tmp_path / "report")]
    assert main(["evaluate", spec, spec, *suite]) == 2
    assert "speaks 'eng', and suite 'two-texts' is in 'de'" in capsys.readouterr().err


def test_a_voice_is_inspected(vits_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"transformers:{vits_dir}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = json.dumps(found)
    for part in ("duration predictor", "flow", "decoder", "16000 Hz", "eng"):
        assert part in text
