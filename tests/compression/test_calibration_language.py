"""A voice is calibrated on texts of its own language, unless the user chooses others."""

import json
from pathlib import Path
from typing import Any

import pytest

from tts_compress.compression.workbench import open_calibration, read_texts
from tts_compress.config import data_file
from tts_compress.errors import TTSCompressWarning
from tts_compress.models import load
from tts_compress.recipes.recipe import Calibration

_DEFAULT = Calibration(set="en")


@pytest.mark.parametrize(
    ("language", "chosen"),
    [("de_DE", "de"), ("es-419", "es"), ("cmn", "zh"), ("en-gb", "en"), (None, "en")],
)
def test_the_shipped_set_of_the_voices_language_is_taken(language: str | None, chosen: str) -> None:
    texts, record = read_texts(_DEFAULT, None, 0, language)
    assert (record.set, record.utterances, len(texts)) == (chosen, 64, 64)


def test_a_set_that_the_user_chooses_wins(tmp_path: Path) -> None:
    """By name, as a file, or in a recipe that names a file."""
    assert read_texts(_DEFAULT, "en", 0, "de")[1].set == "en"
    own = tmp_path / "own.toml"
    text = data_file("calib/sets", "fr").read_text(encoding="utf-8")
    own.write_text(text.replace('name = "fr"', 'name = "own"'), encoding="utf-8")
    assert read_texts(_DEFAULT, str(own), 0, "de")[1].set == "own"
    assert read_texts(Calibration(set=str(own)), None, 0, "de")[1].set == "own"


def test_a_language_without_a_set_is_calibrated_on_english_and_told() -> None:
    with pytest.warns(TTSCompressWarning, match="speaks 'ru'.* calibrated on 'en'.*--calibration"):
        _, record = read_texts(_DEFAULT, None, 0, "ru")
    assert record.set == "en"


def test_a_german_voice_is_calibrated_by_german_texts(
    tiny_path: Path, voice_config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "de.onnx"
    path.write_bytes(tiny_path.read_bytes())
    config = voice_config | {"espeak": {"voice": "de"}}
    path.with_name("de.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    voice: Any = load(path)
    assert open_calibration(voice, _DEFAULT, None, seed=0)[1].set == "de"
