"""A model of several languages takes a suite's texts for ones of the suite's language."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from tts_compress.audio import Audio, read_wav, write_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import EvaluationOptions, Suite, evaluate
from tts_compress.evaluation.stages import synthesize
from tts_compress.evaluation.store import Store, SynthesisJob
from tts_compress.evaluation.subject import open_subject
from tts_compress.families import Upstream
from tts_compress.models.base import Prompt, Speaking


@pytest.fixture
def polyglot(fakes: Callable[..., Any]) -> Any:
    """Return a model of two languages, none of them chosen."""
    return fakes("two", kind="languages", languages=["zh", "en"])


@pytest.mark.parametrize(
    ("asked", "chosen"), [("en-us", "en"), ("cmn", "zh"), ("de", None), (None, None)]
)
def test_the_language_is_one_of_the_models(
    polyglot: Any, tmp_path: Path, asked: str | None, chosen: str | None
) -> None:
    """Finished work of one language is kept apart from that of another."""
    subject = open_subject(polyglot, tmp_path, None, asked)
    assert subject.told.language == chosen
    assert subject.identity().language == chosen
    plain = open_subject(polyglot, tmp_path)
    assert (subject.fingerprint == plain.fingerprint) == (chosen is None)


def test_a_worker_is_told_how_a_given_model_was_told_to_speak(
    polyglot: Any, tmp_path: Path, chirp: Audio
) -> None:
    """It opens the model's files, which may state another voice and language, or none."""
    write_wav(tmp_path / "mine.wav", chirp)
    prompt = Prompt(audio=tmp_path / "mine.wav", text="some words")
    chosen = polyglot.speaking_as(Speaking(languages=("zh",), prompt=prompt))
    subject = open_subject(chosen, tmp_path, None, "en-us")
    assert subject.told == Speaking(languages=("zh",), prompt=prompt)
    assert subject.identity().language == "zh"
    by_suite = open_subject(polyglot, tmp_path, prompt, "zh")
    assert (
        subject.fingerprint == by_suite.fingerprint != open_subject(polyglot, tmp_path).fingerprint
    )
    again = open_subject(by_suite.model, tmp_path)  # as a sweep's report opens it
    assert (again.told, again.fingerprint) == (by_suite.told, by_suite.fingerprint)


def test_a_worker_speaks_the_language_by_the_prompt(
    polyglot: Any, fast_options: EvaluationOptions, tmp_path: Path, chirp: Audio
) -> None:
    """The made-up model is half as loud in a chosen language, and half as loud by a recording."""
    write_wav(tmp_path / "one.wav", chirp)
    prompt = Prompt(audio=tmp_path / "one.wav", text="some words")
    store, levels = Store(tmp_path / "work"), []
    for told in ((None, None), (prompt, "cmn")):
        subject = open_subject(polyglot, tmp_path, *told)
        job = SynthesisJob(model=subject.fingerprint, text="hello", seed=0)
        list(synthesize(store, subject, [job], fast_options, stage="s"))
        levels.append(float(abs(read_wav(store.wav_path(job)).samples).max()))
    assert levels[1] == pytest.approx(0.25 * levels[0], rel=1e-5)


def test_both_models_speak_the_suites_language(
    polyglot: Any,
    shortest_suite: Suite,
    fast_options: EvaluationOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Mock(side_effect=EvaluationError("enough"))
    monkeypatch.setattr("tts_compress.evaluation.run.give_speakers", opened)
    with pytest.raises(EvaluationError, match="enough"):
        evaluate(polyglot, polyglot, suite=shortest_suite, options=fast_options)
    assert [model.identity().language for model in opened.call_args.args[0]] == ["en", "en"]


def test_another_language_is_refused_and_the_suites_that_fit_are_listed(
    fakes: Callable[..., Any], small_suite: Suite, fast_options: EvaluationOptions
) -> None:
    voice = fakes("two", kind="languages", languages=["de", "fr"])
    told = (
        r"speaks 'de', 'fr', and suite 'small' is in 'en-us'; choose a suite of its language "
        r"with --suite \(de-full, de-quick, fr-full, fr-quick\), or"
    )
    with pytest.raises(EvaluationError, match=told):
        evaluate(voice, voice, suite=small_suite, options=fast_options)


_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def settings(
    fake: ModuleType,
    fakes: Callable[..., Any],
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], dict[str, str]]:
    """Return a function that returns the report's settings for a model of the system."""
    monkeypatch.setattr(fake.FakeTorchModel, "family", upstream.family)

    def find() -> dict[str, str]:
        model = fakes("m", kind="torch", settings={"dropout": "off"})
        return open_subject(model, tmp_path).identity().settings

    return find


def test_the_report_names_the_clones_commit(
    clone: Path,
    upstream: Upstream,
    settings: Callable[[], dict[str, str]],
    fake: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model of another system has nothing to do with it."""
    assert settings() == {"dropout": "off"}
    monkeypatch.setenv(upstream.variable, str(clone))
    assert settings() == {"dropout": "off", "upstream commit": "unknown"}
    (clone / ".git").mkdir()
    (clone / ".git" / "HEAD").write_text(_COMMIT)
    assert settings() == {"dropout": "off", "upstream commit": _COMMIT}
    monkeypatch.setattr(fake.FakeTorchModel, "family", "f5-tts")
    assert settings() == {"dropout": "off"}
