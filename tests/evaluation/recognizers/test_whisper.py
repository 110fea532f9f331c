"""Whisper by faster-whisper and by transformers: it decodes the suite's language."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import open_recognizer

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.audio import Audio

_FOLDERS = {"whisper": "converted", "transformers": "whisper_folders"}


@pytest.fixture(params=_FOLDERS)
def given(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return two Whispers as a suite names them: `all` languages, and English `only`."""
    folders = request.getfixturevalue(_FOLDERS[request.param])
    return {name: f"{request.param}:{folder}" for name, folder in folders.items()}


def test_the_suites_language_is_decoded(given: dict[str, str], sounds: list[Audio]) -> None:
    """The language is a token that everything after it depends on."""
    heard = {
        language: open_recognizer(given["all"], language).transcribe(sounds[0])
        for language in ("de", "fr", "cmn", "en-us", "en-gb")
    }
    assert heard["en-us"] == heard["en-gb"]
    assert len({*heard.values()}) == 4
    assert "language zh" in open_recognizer(given["all"], "cmn").description


@pytest.mark.parametrize(("name", "language"), [("only", "de"), ("all", "tlh")])
def test_a_language_that_it_does_not_know_is_refused(
    given: dict[str, str], name: str, language: str
) -> None:
    """The library itself warns, and decodes English."""
    with pytest.raises(EvaluationError, match=f"does not know the suite's language '{language}'"):
        open_recognizer(given[name], language)


def test_the_description_tells_models_and_languages_apart(
    converted: dict[str, Path], tmp_path: Path
) -> None:
    """Finished transcripts are kept by it; a folder's place is no part of it, its content is."""
    moved = tmp_path / "all"
    shutil.copytree(converted["all"], moved)
    found = open_recognizer(f"whisper:{converted['all']}", "de").description
    assert open_recognizer(f"whisper:{moved}", "de").description == found
    others = {
        open_recognizer(f"whisper:{converted['all']}", "fr").description,
        open_recognizer(f"whisper:{converted['only']}", "en").description,
    }
    tokens = moved / "tokenizer.json"
    tokens.write_text(tokens.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    others.add(open_recognizer(f"whisper:{moved}", "de").description)
    assert len(others | {found}) == 4


def test_an_english_whisper_of_transformers_has_no_language_to_choose(
    whisper_folders: dict[str, Path],
) -> None:
    ears = open_recognizer(f"transformers:{whisper_folders['only']}", "en-us")
    assert "language" not in ears.description
