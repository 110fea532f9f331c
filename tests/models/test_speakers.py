"""A voice of several speakers speaks as the one that was chosen, here and in piper."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.audio import read_wav
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel, Speaking
from tts_compress.models.piper import PiperModel

_TEXT = "Hello there."
_NAMES = ("anna", "ben", "cleo")


@pytest.fixture(scope="module")
def choir(choir_path: Path) -> PiperModel:
    found = load(choir_path)
    assert isinstance(found, PiperModel)
    return found


@pytest.fixture
def write(choir_path: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the voice with other entries in its configuration."""

    def write_voice(**changes: Any) -> Path:
        path = tmp_path / "choir.onnx"
        shutil.copy(choir_path, path)
        config = json.loads(choir_path.with_name("choir.onnx.json").read_text("utf-8"))
        path.with_name("choir.onnx.json").write_text(json.dumps(config | changes), "utf-8")
        return path

    return write_voice


def _spoken_by_piper(path: Path) -> list[Any]:
    """Return a text as the unmodified package speaks it as each speaker, without noise."""
    piper = pytest.importorskip("piper")
    voice, spoken = piper.PiperVoice.load(path), []
    for speaker in range(3):
        settings = piper.SynthesisConfig(
            speaker_id=speaker, noise_scale=0.0, noise_w_scale=0.0, normalize_audio=False
        )
        (chunk,) = voice.synthesize(_TEXT, settings)
        spoken.append(chunk.audio_float_array)
    return spoken


def _same(audio: Any, other: Any) -> bool:
    return len(audio) == len(other) and bool(np.allclose(audio, other, atol=1e-4))


@pytest.mark.slow
def test_each_speaker_is_the_one_that_piper_speaks(choir: PiperModel, choir_path: Path) -> None:
    """Against the package itself, as each of its ids: equal to one, unlike the two others."""
    expected = _spoken_by_piper(choir_path)
    for name, number in choir.speakers.items():
        found = choir.speaking_as(Speaking(speaker=name)).synthesize(_TEXT, seed=None).samples
        assert [_same(found, one) for one in expected] == [other == number for other in range(3)]


def test_names_and_ids_are_speakers_and_the_voice_itself_stays(choir: PiperModel) -> None:
    assert dict(choir.speakers) == {"anna": 0, "ben": 1, "cleo": 2}
    before = choir.synthesize(_TEXT, seed=0).samples
    for wanted in ("cleo", "2", 2):
        assert choir.speaking_as(Speaking(speaker=wanted)).speaking.speaker == "cleo"
    chosen = choir.speaking_as(Speaking(speaker="cleo"))
    assert choir.speaker is None
    assert not _same(chosen.synthesize(_TEXT, seed=0).samples, before)
    np.testing.assert_array_equal(choir.synthesize(_TEXT, seed=0).samples, before)
    again = chosen.speaking_as(Speaking(speaker="anna")).synthesize(_TEXT, seed=0).samples
    np.testing.assert_array_equal(again, before)


@pytest.mark.slow
def test_pipers_own_runtime_speaks_as_the_chosen_one(write: Callable[..., Path]) -> None:
    """Without noise it speaks the same every time; by default as the voice states."""
    inference = {"noise_scale": 0.0, "length_scale": 1.0, "noise_w": 0.0}
    path = write(inference=inference, default_speaker_id=1)
    voice, expected = load(path), _spoken_by_piper(path)
    chosen = voice.speaking_as(Speaking(speaker="cleo")).open_runtime(threads=1)
    assert _same(chosen.speak(_TEXT).samples, expected[2])
    assert _same(voice.open_runtime(threads=1).speak(_TEXT).samples, expected[1])
    assert _same(voice.synthesize(_TEXT, seed=None).samples, expected[1])


def test_a_name_that_is_a_number_comes_before_an_id(write: Callable[..., Path]) -> None:
    voice = load(write(speaker_id_map={"2": 0, "7": 1, "0": 2}))
    assert dict(voice.speakers) == {"2": 0, "7": 1, "0": 2}
    assert voice.speaking_as(Speaking(speaker="2")).speakers["2"] == 0
    assert voice.speaking_as(Speaking(speaker="1")).speaking.speaker == "7"
    for stated, one in ((None, "1"), ({}, "1"), ({"ben": 1}, "ben")):
        assert dict(load(write(speaker_id_map=stated)).speakers) == {"0": 0, one: 1, "2": 2}


def test_speakers_that_cannot_be_are_refused(write: Callable[..., Path]) -> None:
    for stated in (*({"anna": wrong} for wrong in (3, -1, "0", True, None)), [1], "x"):
        with pytest.raises(ModelError, match=r"speaker_id_map: give each name an id from 0 to 2"):
            load(write(speaker_id_map=stated))
    for count in (10**12, -1):
        with pytest.raises(ModelError, match="num_speakers"):
            load(write(num_speakers=count))


@pytest.mark.parametrize("wanted", ["dora", "3", "-1", "Anna", "", 3, -1])
def test_an_unknown_speaker_is_one_error_that_names_some(
    choir: PiperModel, wanted: str | int
) -> None:
    with pytest.raises(ModelError, match=r"no speaker .*known: anna, ben, cleo") as raised:
        choir.speaking_as(Speaking(speaker=wanted))
    assert "\n" not in str(raised.value)


def test_an_error_does_not_list_a_thousand_names(write: Callable[..., Path]) -> None:
    names = {f"p{number}": number for number in range(900)}
    with pytest.raises(ModelError, match=r"p7 \(900 in all\)") as raised:
        load(write(num_speakers=900, speaker_id_map=names)).speaking_as(Speaking(speaker="p900"))
    assert len(str(raised.value)) < 400


def test_speakers_that_the_graph_cannot_tell_apart_are_refused(
    tiny_path: Path, voice_config: dict[str, Any], tmp_path: Path
) -> None:
    """All of them would sound the same."""
    path = tmp_path / "tiny.onnx"
    shutil.copy(tiny_path, path)
    config = voice_config | {"num_speakers": 1_000, "speaker_id_map": {"s5": 5, "s900": 900}}
    path.with_name("tiny.onnx.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match=r"no input 'sid' .* 1000 speakers .* num_speakers to"):
        load(path).speaking_as(Speaking(speaker="s900")).synthesize(_TEXT, seed=0)


def test_speakers_beyond_the_embedding_are_refused(write: Callable[..., Path]) -> None:
    """Such a speaker would be an index that onnxruntime finds out of bounds."""
    with pytest.raises(ModelError, match=r"embedding of 3 speakers, .* 5; set num_speakers to 3"):
        load(write(num_speakers=5)).speaking_as(Speaking(speaker="4")).synthesize(_TEXT, seed=0)


def test_a_voice_of_one_has_none(tiny: GraphModel, tiny_path: Path) -> None:
    assert not tiny.speakers
    with pytest.raises(ModelError, match="has one speaker; leave the speaker 'anna' out"):
        load(tiny_path).speaking_as(Speaking(speaker="anna"))


def test_calibration_goes_round_the_speakers(choir: PiperModel) -> None:
    """Text by text, not sentence by sentence; a speaker that was chosen speaks all."""
    texts = ["Yes. No.", "Good day.", "Hello.", "Well."]
    calls = list(choir.calibration_calls(texts, seed=0))
    assert [call["sid"].tolist() for call in calls] == [[0], [0], [1], [2], [0]]
    chosen = choir.speaking_as(Speaking(speaker="ben")).calibration_calls(texts, seed=0)
    assert [call["sid"].tolist() for call in chosen] == 5 * [[1]]


@pytest.mark.slow
def test_ranges_are_those_of_all_speakers_and_the_manifest_names_them(
    choir: PiperModel, tiny: GraphModel, quick_recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    """The manifest of a voice of one is as it was before there were speakers."""
    graphs = []
    for voice, names in (
        (choir, _NAMES),
        (choir.speaking_as(Speaking(speaker=1)), ("ben",)),
        (tiny, ()),
    ):
        folder = tmp_path / f"{len(names)}"
        small: Any = compress(voice, "int8-static", recipe=quick_recipe("int8-static"))
        assert small.speakers == voice.speakers
        graphs.append(small.graph())
        found = load(small.save(folder))
        assert found.manifest is not None
        assert found.manifest.calibration is not None
        assert found.manifest.calibration.speakers == names
        assert ("speakers" in (folder / "manifest.json").read_text("utf-8")) is bool(names)
    assert graphs[0] != graphs[1]


@pytest.mark.slow
def test_the_command_speaks_as_a_speaker(
    choir: PiperModel,
    choir_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Callable[..., str],
) -> None:
    for speaker in ("ben", "1"):
        path = tmp_path / f"{speaker}.wav"
        arguments = ["synthesize", str(choir_path), _TEXT, "--output", str(path)]
        assert main([*arguments, "--speaker", speaker]) == 0
        wanted = choir.speaking_as(Speaking(speaker="ben")).synthesize(_TEXT, seed=0).samples
        np.testing.assert_allclose(read_wav(path).samples, wanted, atol=1e-4)
    capsys.readouterr()
    error = refused(*arguments[:-1], tmp_path / "x.wav", "--speaker", "dora")
    assert "no speaker 'dora'; known: anna, ben, cleo" in error
