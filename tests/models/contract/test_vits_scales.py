"""VITS of Piper and Coqui TTS as sherpa-onnx runs them: facts in the metadata, ids in a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.models.contract.conftest import build_voice
from tts_compress.models import load
from tts_compress.models.base import Speaking


@pytest.fixture
def make_published(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a Piper voice as sherpa-onnx publishes it."""

    def make(voice: Path, /, **changes: str) -> Path:
        config = json.loads(Path(f"{voice}.json").read_text(encoding="utf-8"))
        facts = {
            "model_type": "vits",
            "comment": "piper",
            "language": "English",
            "voice": config["espeak"]["voice"],
            "has_espeak": "1",
            "n_speakers": str(config["num_speakers"]),
            "sample_rate": str(config["audio"]["sample_rate"]),
        }
        graph = onnx.load(voice)
        onnx.helper.set_model_props(graph, facts | changes)
        onnx.save(graph, tmp_path / voice.name)
        symbols = [(s, ids[0]) for s, ids in config["phoneme_id_map"].items() if len(s) == 1]
        lines = [f"{symbol} {number}\n" for symbol, number in symbols]
        (tmp_path / "tokens.txt").write_text("".join(lines), encoding="utf-8")
        return tmp_path / voice.name

    return make


def test_a_published_piper_voice_says_what_piper_says(
    choir_path: Path, make_published: Callable[..., Path]
) -> None:
    pytest.importorskip("piper")
    text = "Well: hello! Is it five o'clock?"
    voice, theirs = (
        load(path).speaking_as(Speaking(speaker="2"))
        for path in (make_published(choir_path), choir_path)
    )
    assert (voice.family, len(voice.speakers), voice.sample_rate) == ("contract", 3, 16000)
    spoken, wanted = (v.synthesize(text, seed=None).samples for v in (voice, theirs))
    assert np.array_equal(spoken, wanted)
    assert np.ptp(wanted) > 0.1


@pytest.mark.parametrize(
    ("language", "text"), [("de", "Ich möchte Milch."), ("pt-br", "Não põe pão.")]
)
def test_marks_of_phonemes_are_apart_as_piper_has_them(
    choir_path: Path, make_published: Callable[..., Path], language: str, text: str
) -> None:
    pytest.importorskip("piper")
    from piper import PiperVoice

    voice: Any = load(make_published(choir_path, voice=language))
    theirs: Any = PiperVoice.load(choir_path)
    theirs.config.espeak_voice = language
    [phonemes] = theirs.phonemize(text)
    [call] = voice.calibration_calls([text], seed=0)
    assert call["input"][0].tolist() == theirs.phonemes_to_ids(phonemes)


def test_a_voice_of_coqui_reads_characters(tmp_path: Path) -> None:
    """Its exporter writes all it has: no ids of edges are `None`, and one voice is none."""
    inputs: dict[str, Any] = {
        "input": (TensorProto.INT64, ["B", "L"]),
        "input_lengths": (TensorProto.INT64, ["B"]),
        "scales": [3],
        "sid": (TensorProto.INT64, ["B"]),
        "langid": (TensorProto.INT64, ["B"]),
    }
    facts = {
        "comment": "coqui",
        "frontend": "characters",
        "add_blank": "1",
        "blank_id": "9",
        "n_speakers": "0",
        "use_eos_bos": "0",
        "bos_id": "None",
        "eos_id": "None",
        "sample_rate": "16000",
    }
    model = build_voice(inputs, {"tokens": "input"}, "output", metadata=facts)
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "tokens.txt").write_text("a 3\né 4\n 5\n<BLNK> 9\n", encoding="utf-8")
    voice: Any = load(tmp_path / "model.onnx")
    assert not voice.speakers
    [call] = voice.calibration_calls(["é a"], seed=0)
    assert call["input"].tolist() == [[9, 4, 9, 5, 9, 3, 9]]
    assert call["langid"].tolist() == [0]
    assert np.ptp(voice.synthesize("é a", seed=0).samples) > 0.1
