"""faster-whisper, with a tiny model of random weights."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.evaluation.recognizers import open_recognizer

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.audio import Audio


def test_transcripts_are_of_the_audio_and_repeat(
    converted: dict[str, Path], sounds: list[Audio]
) -> None:
    """In any order, in any process."""
    ears = open_recognizer(f"whisper:{converted['all']}", "de")
    first = [ears.transcribe(audio) for audio in sounds]
    assert all(first)
    assert len({*first}) == 2
    again = open_recognizer(f"whisper:{converted['all']}", "de")
    assert first[::-1] == [again.transcribe(audio) for audio in sounds[::-1]]


def test_the_suites_language_is_decoded(converted: dict[str, Path], sounds: list[Audio]) -> None:
    """The language is a token that everything after it depends on."""
    heard = {
        language: open_recognizer(f"whisper:{converted['all']}", language).transcribe(sounds[0])
        for language in ("de", "fr", "cmn", "en-us", "en-gb")
    }
    assert heard["en-us"] == heard["en-gb"]
    assert len({*heard.values()}) == 4


def test_the_description_tells_models_and_languages_apart(
    converted: dict[str, Path], tmp_path: Path
) -> None:
    """Finished transcripts are kept by it; a folder's place is no part of it, its content is."""
    moved = tmp_path / "all"
    shutil.copytree(converted["all"], moved)
    found = open_recognizer(f"whisper:{converted['all']}", "de").description
    assert open_recognizer(f"whisper:{moved}", "de").description == found
    assert "faster-whisper 1." in found
    assert "model all (files " in found
    assert "language de, beam 5" in found
    others = {
        open_recognizer(f"whisper:{converted['all']}", "fr").description,
        open_recognizer(f"whisper:{converted['only']}", "en").description,
    }
    tokens = moved / "tokenizer.json"
    tokens.write_text(tokens.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    others.add(open_recognizer(f"whisper:{moved}", "de").description)
    assert len(others | {found}) == 4


@pytest.mark.parametrize(("name", "language"), [("only", "de"), ("all", "tlh")])
def test_a_language_that_it_does_not_know_is_refused(
    converted: dict[str, Path], name: str, language: str
) -> None:
    """The library itself warns, and decodes English."""
    with pytest.raises(EvaluationError, match=f"does not know the suite's language '{language}'"):
        open_recognizer(f"whisper:{converted[name]}", language)


def test_broken_audio_is_a_finding_not_a_crash(converted: dict[str, Path], broken: Audio) -> None:
    assert isinstance(open_recognizer(f"whisper:{converted['only']}", "en").transcribe(broken), str)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/folder", "no folder '/no/such/folder' with a model"),
        ("gigantic", r"cannot open the model 'gigantic' of 'whisper': Invalid model size"),
        ("someone/whisper", r"cannot open the model 'someone/whisper' of 'whisper': .*disabled"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, model: str, message: str
) -> None:
    pytest.importorskip("faster_whisper")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EvaluationError, match=message) as caught:
        open_recognizer(f"whisper:{model}", "de")
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optional dependency."""
    for package in ("ctranslate2", "faster_whisper"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tts-compress\[whisper\]'"):
        open_recognizer("whisper", "de")
