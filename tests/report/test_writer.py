"""Reports on disk and back."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tts_compress import read_report, write_report
from tts_compress.errors import ArtifactError, EvaluationError, MissingExtraError
from tts_compress.evaluation.result import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Altered = Callable[[dict[str, Any]], Evaluation]

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_three_files_are_written_and_nothing_else_is_left(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    target = tmp_path / "not" / "yet"
    assert write_report(evaluation, target) == target
    names = sorted(path.name for path in target.iterdir())
    assert names == ["report.html", "report.json", "report.md"]


def test_writing_again_replaces_the_report(
    evaluation: Evaluation, altered: Altered, tmp_path: Path
) -> None:
    write_report(altered({"size.ratio": 1.0}), tmp_path)
    write_report(evaluation, tmp_path)
    assert read_report(tmp_path) == evaluation


def test_a_report_is_read_from_its_file_or_its_directory(
    evaluation: Evaluation, report: Path
) -> None:
    assert read_report(report) == evaluation
    assert read_report(report / "report.json") == evaluation


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
