"""A suite, a voice and a recognizer have one language, or the user insists."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.suites import suite_text
from tts_compress.cli import main
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import Evaluation, EvaluationOptions, Suite, evaluate, read_report
from tts_compress.models import load
from tts_compress.models.speakers import primary_language
from tts_compress.report import write_report


@pytest.fixture
def german(tiny_path: Path, voice_config: dict[str, Any], tmp_path: Path) -> Path:
    """Return a tiny voice whose configuration says that it speaks German."""
    path = tmp_path / "de.onnx"
    path.write_bytes(tiny_path.read_bytes())
    config = voice_config | {"espeak": {"voice": "de"}}
    path.with_name("de.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture
def short_suite(tmp_path: Path) -> Path:
    path = tmp_path / "kurz.toml"
    text = suite_text(["Grüße aus Köln."], language="de", recognizer="whisper", normalizer="de-v1")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "language"),
    [("en-us", "en"), ("en_GB", "en"), ("cmn", "zh"), ("zh_CN", "zh"), ("DE", "de"), ("nb", "no")],
)
def test_regions_and_names_of_one_language_are_one(name: str, language: str) -> None:
    assert primary_language(name) == language


def test_a_voice_states_its_locale_or_its_espeak_voice(
    german: Path, voice_config: dict[str, Any]
) -> None:
    """Not every configuration has a locale; not every model a language."""
    assert load(german).speaking.language == "de"
    for stated, found in (({"code": "de_AT"}, "de_AT"), ("German", "de"), ({"code": 5}, "de")):
        config = voice_config | {"espeak": {"voice": "de"}, "language": stated}
        german.with_name("de.onnx.json").write_text(json.dumps(config), encoding="utf-8")
        assert load(german).speaking.language == found


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_german_is_evaluated_by_a_recognizer_of_german(
    converted: dict[str, Path], german: Path, short_suite: Path, tmp_path: Path
) -> None:
    """From the command line to the report, which names both languages and the recognizer."""
    arguments = ["evaluate", str(german), str(german), "--suite", str(short_suite)]
    arguments += ["--recognizer", f"whisper:{converted['all']}", "--jobs", "1"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    found = read_report(tmp_path / "out")
    assert (found.reference.language, found.suite.language) == ("de", "de")
    assert found.suite.recognizer_name == f"whisper:{converted['all']}"
    assert "language de, beam 5" in found.suite.recognizer
    assert found.suite.normalizer == "de-v1"
    assert found.utterances[0].transcript == "grüße aus köln"
    assert found.wer.delta == 0.0
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "faster-whisper" in text


def test_a_missing_extra_is_one_line(
    german: Path,
    short_suite: Path,
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recognizer is in a process of its own, so a folder stands in for the absent package."""
    absent = tmp_path / "absent"
    for package in ("ctranslate2", "faster_whisper"):
        (absent / package).mkdir(parents=True)
        (absent / package / "__init__.py").write_text("raise ModuleNotFoundError(name=__name__)")
    monkeypatch.setenv("PYTHONPATH", f"{absent}:{':'.join(path for path in sys.path if path)}")
    arguments = ["evaluate", str(german), str(german), "--suite", str(short_suite)]
    printed = refused(*arguments, "--output", tmp_path / "out")
    assert "pip install 'tts-compress[whisper]'" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_one_may_insist_on_another_language(
    fakes: Callable[..., Any],
    shortest_suite: Suite,
    fast_options: EvaluationOptions,
    tmp_path: Path,
) -> None:
    """A voice may be better than what it states, and regions are no other language."""
    models = [fakes(name) for name in ("r", "c")]
    for model in models:
        model.languages = ("de",)
    with pytest.raises(EvaluationError, match="speaks 'de', and suite 'small' is in 'en-us'"):
        evaluate(*models, suite=shortest_suite, options=fast_options)
    options = replace(fast_options, any_language=True)
    found = evaluate(*models, suite=shortest_suite, options=options)
    assert (found.reference.language, found.suite.language) == ("de", "en-us")
    text = (write_report(found, tmp_path / "report") / "report.md").read_text(encoding="utf-8")
    assert "tone reader 1" in text


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_of_chinese_the_characters_are_counted(
    evaluated: Callable[..., Evaluation], shortest_suite: Suite
) -> None:
    """The spaces between them are none, and their error rate is the headline."""
    from tts_compress.report.summary import summary_rows

    texts = tuple(item.model_copy(update={"spoken": "好的"}) for item in shortest_suite.utterances)
    changes: dict[str, Any] = {"normalizer": "characters-v1", "utterances": texts}
    found = evaluated(suite=shortest_suite.model_copy(update=changes))
    assert {(item.words, item.characters) for item in found.utterances} == {(2, 2)}
    assert found.cer.counts.reference.reference_tokens == 2 * len(found.utterances)
    rows = {row.label: row for row in summary_rows(found)}
    assert rows["Character error rate"].headline is not None
    assert rows["Word error rate, each character a word"].headline is None
