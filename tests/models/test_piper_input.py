"""Untrusted texts and configurations."""

import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_compress.errors import ModelError, TextError, TTSCompressError
from tts_compress.models import load
from tts_compress.models.base import GraphModel, Prompt, Runtime
from tts_compress.models.piper import PiperModel

_KEYS = [
    ("audio",),
    ("audio", "sample_rate"),
    ("espeak",),
    ("espeak", "voice"),
    ("inference",),
    ("inference", "noise_scale"),
    ("inference", "length_scale"),
    ("inference", "noise_w"),
    ("phoneme_type",),
    ("phoneme_id_map",),
    ("phoneme_id_map", "h"),
    ("num_symbols",),
    ("num_speakers",),
    ("default_speaker_id",),
]


@pytest.fixture(scope="module")
def runtime(tiny: GraphModel) -> Runtime:
    """Piper's own code around the tiny voice."""
    return tiny.open_runtime(threads=1)


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "...", "?!", "—", "\x01", "hello\0world", "\ud800"]
)
def test_text_without_words_is_refused(tiny: GraphModel, runtime: Runtime, text: str) -> None:
    has_words = text[:1] in {"h", "\ud800"}
    message = None if has_words else r"nothing to speak in .*give a text with words"
    with pytest.raises(TextError, match=message):
        tiny.synthesize(text, seed=0)
    with pytest.raises(TextError, match=message):
        runtime.speak(text)


def test_very_long_sentence_is_refused(tiny: GraphModel) -> None:
    with pytest.raises(TextError, match=r"at most 2000 are accepted.*full stop"):
        tiny.synthesize("word " * 3000, seed=0)


def test_long_text_of_short_sentences_is_spoken(tiny: GraphModel) -> None:
    audio = tiny.synthesize("Yes. " * 50, seed=0)
    assert np.isfinite(audio.samples).all()


@settings(deadline=None, max_examples=20)
@given(st.text(max_size=12))
def test_any_text_is_spoken_or_refused(tiny: GraphModel, text: str) -> None:
    with contextlib.suppress(TextError):
        assert tiny.synthesize(text, seed=0).samples.size > 0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"null", b"3", b'{"audio": 1}'])
def test_malformed_configuration_is_a_model_error(
    tiny_path: Path, tmp_path: Path, content: bytes
) -> None:
    shutil.copy(tiny_path, tmp_path)
    (tmp_path / "tiny.onnx.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tiny\.onnx\.json"):
        load(tmp_path / "tiny.onnx")


def _not_called(*_: Any) -> list[Any]:
    raise AssertionError("a round is called before its feeds are asked for")


@pytest.mark.parametrize("key", _KEYS, ids=".".join)
def test_any_wrong_value_is_our_own_error(
    tiny_path: Path, tmp_path: Path, voice_config: dict[str, Any], key: tuple[str, ...]
) -> None:
    """Whatever is not refused at once has to be enough to turn a text into symbols."""
    path = tmp_path / "tiny.onnx"
    path.symlink_to(tiny_path)
    values: tuple[Any, ...] = (None, "?", [], [2**70], [-1], {}, -1, 0, 2**70, 1e400, True)
    for value in values:
        config = copy.deepcopy(voice_config)
        place = config
        for part in key[:-1]:
            place = place[part]
        place[key[-1]] = value
        path.with_name("tiny.onnx.json").write_text(json.dumps(config), encoding="utf-8")
        with contextlib.suppress(TTSCompressError):
            voice = load(path)
            assert isinstance(voice, PiperModel)
            assert voice.describe()
            assert voice.sample_rate > 0
            for call in voice.caller.calls("Hello.", 0, None, Prompt()):
                assert next(voice.caller.rounds(_not_called, call, [0])).feeds


def test_whole_numbers_may_be_written_with_a_point(
    tiny_path: Path, tmp_path: Path, voice_config: dict[str, Any]
) -> None:
    """JSON does not tell 22050.0 from 22050, and programs write either."""
    path = tmp_path / "tiny.onnx"
    path.symlink_to(tiny_path)
    ids = {key: [*map(float, numbers)] for key, numbers in voice_config["phoneme_id_map"].items()}
    config = voice_config | {"num_speakers": 1.0, "phoneme_id_map": ids}
    config["audio"] = config["audio"] | {"sample_rate": float(config["audio"]["sample_rate"])}
    path.with_name("tiny.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    expected = load(tiny_path).synthesize("Hello.", seed=0)
    spoken = load(path).synthesize("Hello.", seed=0)
    assert spoken.sample_rate == expected.sample_rate
    np.testing.assert_array_equal(spoken.samples, expected.samples)
