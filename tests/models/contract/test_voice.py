"""Voices that speak by their contract, through every command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.texts import write_set
from tts_compress.artifact import TrainingRecord
from tts_compress.compression import compress, compress_trained
from tts_compress.errors import ModelError, TextError
from tts_compress.evaluation import EvaluationOptions, Suite, evaluate
from tts_compress.inspection.components import inspect_model
from tts_compress.models import load
from tts_compress.models.base import GraphModel, Speaking
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

_IDS = "ids: 43 50 83 156 54 57 16 46"

_SYSTEMS = {
    "kokoro": ("kokoro", _IDS, ["voices-v1.0.bin"]),
    "vits": ("vits", "Hello there.", ["tokens.txt"]),
    "kitten": ("kitten-0.1", _IDS, ["voices.npz"]),
    "styletts2": ("styletts2", _IDS, ["voices.bin"]),
    "matcha": ("matcha", "ids: 5 9 12 30 7", ["tokens.txt", "hifigan_v2.onnx"]),
    "matcha_vocos": ("matcha-vocos", "ids: 5 9 12 30 7", ["tokens.txt", "vocos-22khz-univ.onnx"]),
    "melo": ("melo", "Hello, world.", ["tokens.txt", "lexicon.txt"]),
    "supertonic": (
        "supertonic",
        "Hello, world.",
        [
            *(f"onnx/{name}.onnx" for name in ("text_encoder", "vector_estimator", "vocoder")),
            *("onnx/tts.json", "onnx/unicode_indexer.json"),
            *("voice_styles/F1.json", "voice_styles/M1.json"),
        ],
    ),
}
"""The contract, a text without optional packages, and the files beside each tiny voice."""


_SCHEMES = [name for name in schemes_of("contract") if not find_scheme(name).trained]


def test_kokoro_is_found_by_its_inputs(make_kokoro: Callable[..., Path]) -> None:
    """It is called as its authors do in the tests of clients."""
    path = make_kokoro()
    voice: Any = load(path)
    assert isinstance(load(path), GraphModel)
    assert (voice.family, voice.sample_rate, voice.language) == ("contract", 24000, "en-us")
    assert dict(voice.speakers) == {"af_heart": 0, "am_adam": 1}


@pytest.mark.parametrize(
    ("system", "scheme"),
    # Every scheme of one system, and of all others one in integers; of chains also one that finds
    # ranges when it is played and one in halves: layers in other schemes are of these or real.
    [
        *(("kokoro", scheme) for scheme in _SCHEMES),
        *((system, "int8") for system in _SYSTEMS if system not in {"kokoro", "supertonic"}),
        ("matcha_vocos", "fp16"),
        *(
            pytest.param("supertonic", scheme, marks=pytest.mark.slow)
            for scheme in ("int8", "int8-dynamic")
        ),
    ],
)
def test_every_scheme_compresses_and_the_artifact_speaks(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str, system: str, ids_set: Path
) -> None:
    path = request.getfixturevalue(f"make_{system}")()
    original: Any = load(path)
    observes = find_recipe("contract", scheme).calibration is not None
    small = compress(
        original,
        scheme,
        calibration=ids_set if observes else None,
        quality="fast" if scheme == "int8" else None,
    )
    saved: Any = load(small.save(tmp_path / "saved"))
    files = [file for file in (tmp_path / "saved").rglob("*") if file.is_file()]
    assert {file.relative_to(tmp_path / "saved").as_posix() for file in files} == {
        "manifest.json",
        "contract.toml",
        f"onnx/{path.name}" if system == "supertonic" else path.name,
        *_SYSTEMS[system][2],
    }
    assert saved.manifest.scheme == scheme
    text = _SYSTEMS[system][1]
    reference, candidate = (voice.synthesize(text, seed=3) for voice in (original, saved))
    error = candidate.samples - reference.samples
    assert len(error)
    assert 10 * np.log10(np.mean(reference.samples**2) / np.mean(error**2)) > (
        10 if scheme.startswith("int4") else 20
    )
    assert saved.describe()["contract"] == _SYSTEMS[system][0]


@pytest.mark.slow
def test_lengths_that_a_contract_takes_from_an_output_are_followed(
    make_supertonic: Callable[..., Path],
) -> None:
    """The first graph returns seconds; the three behind it decide no length."""
    parts = inspect_model(load(make_supertonic()))["components"]
    deciding = [part["role"] for part in parts if part["length_layers"]]
    assert deciding
    assert set(deciding) == {""}
    assert [part["role"] for part in parts].count("follows") == 3


def test_training_takes_one_text_at_a_time(make_kokoro: Callable[..., Path], ids_set: Path) -> None:
    """Such graphs have batches of one, and inputs without an axis for them."""
    pytest.importorskip("accelerate")
    run = TrainingRun(options=TrainingOptions(steps=2))
    small = compress_trained(make_kokoro(), calibration=ids_set, run=run)
    assert isinstance(small.manifest.training, TrainingRecord)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("dtype", "kind"), [(TensorProto.INT32, "int32"), (TensorProto.FLOAT16, "float16")]
)
def test_inputs_have_the_types_of_the_graph(
    make_kokoro: Callable[..., Path], dtype: int, kind: str
) -> None:
    """Some exports of Kokoro take the speed as int32, where a float crashes."""
    voice: Any = load(make_kokoro(speed=dtype, tokens="input_ids"))
    [call] = voice.calibration_calls([_IDS], seed=0)
    assert {name: str(array.dtype) for name, array in call.items()} == {
        "input_ids": "int64",
        "style": "float32",
        "speed": kind,
    }
    assert len(voice.synthesize(_IDS, seed=0).samples) == 10 * 64


def test_characters_have_blanks_and_edges_as_the_metadata_states(
    make_vits: Callable[..., Path],
) -> None:
    """Upper case is lowered, and what the vocabulary lacks is left out."""
    [call] = load(make_vits()).calibration_calls(["Ab§c!"], seed=0)  # type: ignore[attr-defined]
    assert call["x"].tolist() == [[30, 0, 2, 0, 3, 0, 4, 0, 31]]
    assert call["x_length"].tolist() == [9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ids: 5 x7", "'x7' is no id of a token"),
        ("ids:", "no ids in 'ids:'"),
        ("", "nothing to speak in ''"),
        ("§§", "nothing to speak"),
        ("日本", "nothing in '日本' is in the voice's vocabulary"),
        (f"ids: {' '.join(['5'] * 2001)}", "2001 symbols at once; at most 2000 are accepted"),
    ],
)
def test_text_that_cannot_be_spoken(
    make_vits: Callable[..., Path], text: str, message: str
) -> None:
    with pytest.raises(TextError, match=message):
        load(make_vits()).synthesize(text, seed=0)


def test_espeak_spells_kokoros_texts(make_kokoro: Callable[..., Path]) -> None:
    """Each sentence is a call; the phonemes are those that kokoro-onnx has for it."""
    pytest.importorskip("piper")
    voice: Any = load(make_kokoro())
    calls = [*voice.calibration_calls(["Hello. Go on!"], seed=0)]
    assert len(calls) == 2
    spelled = {50: "h", 54: "l", 4: ".", 156: "ˈ", 57: "o"}
    ids = calls[0]["tokens"][0]
    assert ids[0] == ids[-1] == 0
    # həlˈoʊ.
    assert [spelled.get(number, "?") for number in ids[1:-1]] == [*"h?lˈo?."]


def test_a_voice_without_its_style_file_is_a_model_error(make_kokoro: Callable[..., Path]) -> None:
    path = make_kokoro()
    path.with_name("voices-v1.0.bin").unlink()
    with pytest.raises(
        ModelError, match=r"no file 'voices\*.bin or voices\*.npz' in .*put it beside"
    ):
        load(f"contract:{path}")


def test_styles_without_a_header_are_read_by_the_shape_that_the_contract_states(
    make_kokoro: Callable[..., Path],
) -> None:
    """As sherpa-onnx keeps them: float32 values, voice after voice."""
    path = make_kokoro()
    styles = path.with_name("voices-v1.0.bin")
    expected = load(path).synthesize(_IDS, seed=0).samples
    with np.load(styles) as arrays:
        values = np.concatenate([arrays[name].ravel() for name in ("af_heart", "am_adam")])
    values.tofile(styles)
    voice = load(path)
    assert [*voice.speakers] == ["0", "1"]
    assert np.array_equal(voice.synthesize(_IDS, seed=0).samples, expected)
    values[:-1].tofile(styles)
    with pytest.raises(ModelError, match="261119 values are no multiple of the 130560 of a voice"):
        load(f"contract:{path}")


@pytest.mark.slow
@pytest.mark.parametrize("system", ["matcha", "supertonic"])
def test_it_is_evaluated_by_ids(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """In processes of its own: speakers, a chain, and a loop; the recognizer is left out."""
    monkeypatch.setattr(
        "tts_compress.evaluation.run.analyze",
        lambda _, __, audios, *___, **____: {key: "cats" for key, _ in audios},
    )
    path = request.getfixturevalue(f"make_{system}")()
    suite = Suite.model_validate_json(
        json.dumps(
            {
                "version": 1,
                "name": "ids",
                "language": "en-us",
                "recognizer": "pocketsphinx",
                "normalizer": "en-v1",
                "seeds": [0, 1],
                "utterances": [{"text": f"ids: 5 9 {n} 7 8", "spoken": "cats"} for n in (3, 4, 6)],
                "card": dict.fromkeys(("summary", "source", "licence", "composition"), "s"),
            }
        )
    )
    small = compress(load(path), "int8-dynamic")
    options = EvaluationOptions(
        work=tmp_path / "work", timing_texts=1, timing_runs=1, blame=system == "matcha"
    )
    found = evaluate(path, small, suite=suite, options=options)
    if found.blame is not None:
        blamed = {part.component for part in found.blame.parts}
        assert blamed == {"encoder", "decoder", "hifigan_v2"}
    turns = ["F1", "M1"] if system == "supertonic" else [None, None]
    assert [row.speaker for row in found.utterances[::2]] == [*turns, turns[0]]
    assert (found.reference.family, found.candidate.scheme) == ("contract", "int8-dynamic")
    assert found.size.ratio > 1.5
    assert all(row.log_mel_distance_db > 0 for row in found.utterances)


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_ids_are_evaluated_and_calibrated_on_without_words(
    make_vits: Callable[..., Path], tmp_path: Path
) -> None:
    """No recognizer, no transcripts, no origin of texts."""
    ids = [f"ids: 5 9 {n} 7 8" for n in (3, 4, 6)]
    calibration = write_set(tmp_path / "ids.toml", ids)
    suite = {"version": 1, "name": "ids", "language": "en-us", "recognizer": "none"}
    suite |= {"normalizer": "en-v1", "seeds": [0], "utterances": [{"text": one} for one in ids]}
    path = make_vits()
    small = compress(load(path), "int8-static", calibration=calibration)
    found = evaluate(
        path,
        small,
        suite=Suite.model_validate_json(json.dumps(suite)),
        options=EvaluationOptions(work=tmp_path / "work"),
    )
    assert found.suite.recognizer == "none"
    assert any("words: nothing was judged" in warning for warning in found.warnings)
    assert all(row.log_mel_distance_db > 0 for row in found.utterances)


def test_melo_has_tones_and_blanks_between_its_symbols(make_melo: Callable[..., Path]) -> None:
    voice: Any = load(make_melo())
    [call] = voice.calibration_calls(["World, unknown"], seed=0)
    assert call["x"].tolist() == [[0, 5, 0, 6, 0, 3, 0, 7, 0, 8, 0]]
    assert call["tones"].tolist() == [[0, 7, 0, 9, 0, 7, 0, 7, 0, 0, 0]]
    assert (call["x_lengths"].tolist(), call["sid"].tolist()) == ([11], [5])
    [call] = voice.calibration_calls(["ids: 4/2 3"], seed=0)
    assert call["tones"].tolist() == [[0, 2, 0, 0, 0]]


def test_kittens_style_is_that_of_the_length_of_the_text(make_kitten: Callable[..., Path]) -> None:
    """Version 0.8, which ends with an ellipsis; the last style is for all that is longer."""
    pytest.importorskip("piper")
    path = make_kitten(rows=8)
    voice: Any = load(path)
    assert voice.describe()["contract"] == "kitten"
    styles = np.load(path.with_name("voices.npz"))["expr-voice-2-f"]
    voice = voice.speaking_as(Speaking(speaker="expr-voice-2-f"))
    for text, row in (("Hi.", 3), ("Good morning.", 7)):
        [call] = voice.calibration_calls([text], seed=0)
        assert np.array_equal(call["style"], styles[[row]])
        assert call["input_ids"][0, [0, -2, -1]].tolist() == [0, 10, 0]


@pytest.mark.parametrize(("rows", "contract"), [(1, "kitten-0.1"), (8, "kitten")])
def test_kittens_styles_without_a_header_are_those_of_the_metadata(
    make_kitten: Callable[..., Path], rows: int, contract: str
) -> None:
    """sherpa-onnx publishes plain numbers, and the names in the graph."""
    path = make_kitten(rows=rows)
    with np.load(path.with_name("voices.npz")) as file:
        styles = {name: file[name] for name in file}
    path.with_name("voices.npz").unlink()
    np.stack([*styles.values()]).tofile(path.with_name("voices.bin"))
    graph = onnx.load(path)
    onnx.helper.set_model_props(graph, {"speaker_names": ",".join(styles)})
    onnx.save(graph, path)
    voice: Any = load(path)
    assert voice.describe()["contract"] == contract
    assert list(voice.speakers) == list(styles)
    [call] = voice.speaking_as(Speaking(speaker="expr-voice-2-f")).calibration_calls(
        ["ids: 43 50 83"], seed=0
    )
    assert (call["style"] == styles["expr-voice-2-f"]).all(1).any()


def test_one_voice_of_the_metadata_is_no_list(make_kokoro: Callable[..., Path]) -> None:
    path = make_kokoro()
    styles = path.with_name("voices-v1.0.bin")
    with np.load(styles) as file:
        first = file["af_heart"]
    first.tofile(styles)
    graph = onnx.load(path)
    onnx.helper.set_model_props(graph, {"speaker_names": "7", "style_dim": "510,1,256"})
    onnx.save(graph, path)
    voice: Any = load(path)
    [call] = voice.calibration_calls(["ids: 43 50 83"], seed=0)
    assert np.array_equal(call["style"], first[2])


def test_styletts2_takes_tokens_without_a_batch(make_styletts2: Callable[..., Path]) -> None:
    voice: Any = load(make_styletts2())
    [call] = voice.calibration_calls(["ids: 5 6"], seed=0)
    assert call["tokens"].tolist() == [0, 5, 6, 0]
    assert call["style"].shape == (1, 256)
    assert call["speed"].shape == ()


def test_two_fitting_contracts_are_told_apart_by_the_style_file(
    make_kitten: Callable[..., Path],
) -> None:
    path = make_kitten()
    path.with_name("voices.npz").unlink()
    with pytest.raises(
        ModelError, match=r"fit the contracts kitten and kitten-0.1 and kokoro; put"
    ):
        load(f"contract:{path}")
