"""A tiny Parler-TTS model, compressed and evaluated by the commands that people type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tts_compress import read_report
from tts_compress.cli import main
from tts_compress.evaluation import Gate, Gates
from tts_compress.evaluation import gate as judge

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
description = "a bright high voice"

[card]
summary = "s"
source = "s"
licence = "Apache-2.0"
composition = "c"
"""


@pytest.mark.slow
def test_a_compressed_model_is_evaluated_from_the_command_line(
    tmp_path: Path, tiny_parler_dir: Path
) -> None:
    """It speaks by the suite's description; a gate can check its tokens, compared one by one."""
    pytest.importorskip("pocketsphinx")
    (tmp_path / "suite.toml").write_text(_SUITE, encoding="utf-8")
    spec, small = f"parler-tts:{tiny_parler_dir}", tmp_path / "int8"
    assert main(["quantize", spec, "--scheme", "int8", "--output", str(small)]) == 0
    out = tmp_path / "report"
    suite = ["--suite", str(tmp_path / "suite.toml"), "--output", str(out)]
    assert main(["evaluate", spec, str(small), *suite]) == 0
    assert {"report.html", "report.json", "report.md"} <= {p.name for p in out.iterdir()}

    found = read_report(out)
    assert found.wer.counts.reference.reference_tokens == 5
    assert found.size.ratio > 1.5
    scores = found.teacher_forced
    assert scores is not None
    assert scores.texts == 2
    assert scores.positions > 100
    assert 0.8 < scores.agreement <= 1.0
    assert 0.0 < scores.kl_nats < 0.1
    assert 0.0 < scores.logit_distance < 0.2
    gate = Gate(metric="teacher_forced.kl_nats", limit=0.1, direction="at-most", kind="absolute")
    assert judge(found, Gates(version=1, name="g", summary="s", gate=(gate,))).passed
    for identity in (found.reference, found.candidate):
        assert identity.settings["description"] == "a bright high voice"
    for side in (found.memory.reference, found.memory.candidate):
        assert 0 < side.peak_bytes - side.idle_bytes < 0.5 * side.peak_bytes

    rows = (out / "report.md").read_text(encoding="utf-8")
    assert "| Token agreement |" in rows
    assert json.loads((out / "report.json").read_text())["teacher_forced"]["texts"] == 2


@pytest.mark.slow
def test_a_model_against_itself_agrees_in_every_token(
    tmp_path: Path, tiny_parler_dir: Path
) -> None:
    """Exactly: the same weights give the same scores in two processes."""
    pytest.importorskip("pocketsphinx")
    (tmp_path / "suite.toml").write_text(_SUITE, encoding="utf-8")
    spec, out = f"parler-tts:{tiny_parler_dir}", tmp_path / "report"
    suite = ["--suite", str(tmp_path / "suite.toml"), "--output", str(out)]
    assert main(["evaluate", spec, spec, *suite]) == 0
    scores = read_report(out).teacher_forced
    assert scores is not None
    assert (scores.agreement, scores.kl_nats, scores.logit_distance) == (1.0, 0.0, 0.0)
