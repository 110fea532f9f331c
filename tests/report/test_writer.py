"""Reports on disk and back."""

import base64
import inspect
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tts_compress
from tts_compress import read_report, write_report
from tts_compress.artifact import read_manifest
from tts_compress.audio import Audio
from tts_compress.errors import ArtifactError, EvaluationError, MissingExtraError
from tts_compress.evaluation.result import Evaluation
from tts_compress.models import load
from tts_compress.models.base import GraphModel

Altered = Callable[[dict[str, Any]], Evaluation]


finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.usefixtures("undrawn")
def test_three_files_replace_those_of_before_and_are_read_by_file_or_directory(
    evaluation: Evaluation, altered: Altered, tmp_path: Path
) -> None:
    target = tmp_path / "not" / "yet"
    for written in (altered({"size.ratio": 1.0}), evaluation):
        assert write_report(written, target) == target
        names = sorted(path.name for path in target.iterdir())
        assert names == ["report.html", "report.json", "report.md"]
    assert read_report(target) == read_report(str(target / "report.json")) == evaluation


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(text=st.text(st.characters(codec="utf-8")), number=finite, errors=st.integers(0, 10**6))
def test_any_text_and_number_survive_the_round_trip(
    altered: Altered, text: str, number: float, errors: int
) -> None:
    changed = altered(
        {
            "utterances.0.text": text,
            "utterances.1.candidate.hypothesis": text,
            "utterances.1.candidate.word_errors": errors,
            "utterances.2.log_mel_distance_db": number,
            "wer.delta": number,
            "wer.interval": (number, -number),
            "candidate.spec": text,
        }
    )
    assert Evaluation.from_json(changed.to_json()) == changed


def test_a_directory_that_cannot_be_made_is_one_plain_error(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArtifactError, match=r"cannot create '.*file"):
            write_report(evaluation, target)


@pytest.mark.usefixtures("undrawn")
def test_a_file_that_cannot_be_written_is_one_plain_error(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    (tmp_path / "report.md" / "in the way").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"cannot write '.*report\.md'"):
        write_report(evaluation, tmp_path)
    # The document is the last to be written: where it is, so is all of the report.
    assert not (tmp_path / "report.json").exists()


def test_a_missing_extra_does_not_lose_the_measurements(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("html", "pages"):
        monkeypatch.delitem(sys.modules, f"tts_compress.report.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError):
        write_report(evaluation, tmp_path)
    assert read_report(tmp_path) == evaluation
    assert (tmp_path / "report.md").is_file()


@pytest.mark.parametrize("name", ["", "report.json", "other.json"])
def test_a_report_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(EvaluationError, match=r"there is no report at '.*json'; give a report\.js"):
        read_report(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"format_version": 2}',
        b"\xff\xfe\x00",
        b"<html>",
        b"[" * 100_000,
    ],
    ids=["empty", "no fields", "list", "null", "version", "not UTF-8", "HTML", "deep"],
)
def test_a_file_that_is_no_report(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(EvaluationError, match=r"report\.json"):
        read_report(tmp_path)


def test_an_unknown_or_a_lacking_field_is_named(evaluation: Evaluation, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    content = json.loads(evaluation.to_json())
    content["wer"]["median"] = 0.1
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"wer\.median"):
        read_report(file)
    del content["wer"]["median"], content["utterances"][3]["seed"]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"utterances\.3\.seed"):
        read_report(file)


def test_a_voice_is_shown_by_its_spec_and_scheme(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    assert repr(tiny) == f"PiperModel({tiny.spec!r})"
    folder = compressed("int8")
    assert repr(load(folder)) == f"PiperModel({str(folder)!r}, int8)"


def test_audio_plays_in_a_notebook() -> None:
    samples = np.sin(np.arange(8000, dtype=np.float32))
    audio = Audio(samples=samples, sample_rate=16000)
    assert repr(audio) == "Audio(0.50 s, 16000 Hz)"
    found = re.search(r'<audio controls src="data:audio/wav;base64,([^"]+)">', audio._repr_html_())
    assert found is not None
    played, rate = soundfile.read(io.BytesIO(base64.b64decode(found[1])))
    assert rate == 16000
    np.testing.assert_allclose(played, samples, atol=2**-14)


def test_a_manifest_is_short_and_a_table(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert len(repr(manifest)) < 300
    assert repr(manifest).startswith("Manifest(int8 of ")
    table = manifest._repr_html_()
    assert all(label in table for label in manifest.counts)


def test_an_evaluation_is_short_and_a_table(evaluation: Evaluation) -> None:
    hostile = evaluation.candidate.model_copy(update={"spec": "<script>"})
    shown = evaluation.model_copy(update={"candidate": hostile})
    assert len(repr(shown)) < 300
    table = evaluation._repr_html_()
    assert "<td>Word error rate</td>" in table
    assert "<script" not in shown._repr_html_()


def test_signatures_name_their_parameters() -> None:
    for name in tts_compress.__all__:
        found = getattr(tts_compress, name)
        if not inspect.isfunction(found):
            continue
        kinds = {p.kind for p in inspect.signature(found).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}, name
    seed = inspect.signature(GraphModel.synthesize).parameters["seed"]
    assert seed.default == 0
