"""Promises of every recognizer, on models of random weights where none is in its package."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.normalizers import english_v1
from tts_compress.evaluation.recognizers import (
    Recognizer,
    find_folder,
    identify,
    model_files,
    open_recognizer,
)
from tts_compress.models import load


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizerCase:
    """A recognizer, the model it is opened with, and what it refuses."""

    name: str
    extra: str
    packages: tuple[str, ...]
    """Modules without which it has to name its extra; the first of them is imported."""

    model: str | None = None
    """Fixture of a model's folder, or none for the model in its package."""

    language: str = "de"
    steady: bool = True
    """True if sound without speech leaves the next transcript as it was; it moves Moonshine's
    detector of speech."""

    described: tuple[str, ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    """The text behind the name, the suite's language, and a pattern of the error."""


_NO_FOLDER = (":/no/such/folder", "de", "no folder '/no/such/folder' with a model")
_CASES = (
    RecognizerCase(
        name="pocketsphinx",
        extra="evaluate",
        packages=("pocketsphinx",),
        language="en-us",
        described=("PocketSphinx 5", "2000 phones a frame", "trigram"),
        refused=(
            ("", "de", "'pocketsphinx' knows English, and the suite is in 'de'"),
            (":large", "en-us", "has its stock model alone; leave ':large' out"),
        ),
    ),
    RecognizerCase(
        name="moonshine",
        extra="moonshine",
        packages=("moonshine_voice",),
        steady=False,
        language="en-gb",
        described=("moonshine-voice 0.0.", "model tiny-en (files "),
        refused=(
            ("", "de", "'moonshine' does not know the suite's language 'de' .it knows en"),
            (":/no/such/folder", "de", "no Moonshine model in '/no/such/folder'; give a folder"),
            (":gigantic", "de", "no Moonshine model in 'gigantic'; give a folder"),
        ),
    ),
    RecognizerCase(
        name="onnx-asr",
        extra="onnx-asr",
        packages=("onnx_asr.loader",),
        model="nemo",
        described=("onnx-asr 0.", "model nemo (files "),
        refused=(
            _NO_FOLDER,
            ("", "de", "'onnx-asr' needs a model"),
            (":gigantic", "de", "cannot open the model 'gigantic' .*: Model 'gigantic' not supp"),
            (":nemo-parakeet-tdt-0.6b-v3", "de", "cannot open the model .* 'onnx-asr': .*disabled"),
            (":nemo-parakeet-tdt-0.6b-v2", "de", "know the suite's language 'de' .it knows en"),
            (":t-tech/t-one", "de", "does not know the suite's language 'de' .it knows ru"),
        ),
    ),
    RecognizerCase(
        name="whisper",
        extra="whisper",
        packages=("faster_whisper", "ctranslate2"),
        model="converted_whisper",
        described=("faster-whisper 1.", "model all (files ", "language de, beam 5"),
        refused=(
            _NO_FOLDER,
            (":gigantic", "de", "cannot open the model 'gigantic' of 'whisper': Invalid model"),
            (":someone/whisper", "de", "cannot open the model 'someone/whisper' .*: .*disabled"),
        ),
    ),
    RecognizerCase(
        name="transformers",
        extra="transformers",
        packages=("transformers",),
        model="wav2vec",
        described=("Wav2Vec2ForCTC wav2vec (files ",),
        refused=(
            _NO_FOLDER,
            ("", "de", "'transformers' needs a model"),
            (":someone/model", "de", "cannot open the model 'someone/model' of 'transformers': "),
        ),
    ),
    RecognizerCase(
        name="transformers",
        extra="transformers",
        packages=("transformers",),
        model="whisper",
        described=("WhisperForConditionalGeneration all (files ", "language de"),
    ),
)
_BROKEN = {
    "empty": [],
    "one sample": [0.0],
    "NaN": [np.nan] * 8000,
    "infinite": [np.inf, -np.inf] * 4000,
    "silence": [0.0] * 8000,
}


@pytest.fixture(scope="module", params=_CASES, ids=lambda case: case.model or case.name)
def case(request: pytest.FixtureRequest) -> RecognizerCase:
    """Return a recognizer whose packages are installed."""
    found: RecognizerCase = request.param
    pytest.importorskip(found.packages[0])
    return found


@pytest.fixture(scope="module")
def opened(case: RecognizerCase, request: pytest.FixtureRequest) -> Callable[[], Recognizer]:
    """Return a function that opens the recognizer with its model."""
    given = f"{case.name}:{request.getfixturevalue(case.model)}" if case.model else case.name
    return lambda: open_recognizer(given, case.language)


@pytest.fixture(scope="module")
def ears(opened: Callable[[], Recognizer]) -> Recognizer:
    """Return the recognizer with its model."""
    return opened()


@pytest.fixture(scope="module")
def heard(
    case: RecognizerCase, sounds: list[Audio], request: pytest.FixtureRequest
) -> Sequence[Audio]:
    """Return two sounds, for a trained model the half of them, behind a reader's sentences."""
    if case.model:
        return sounds
    halves = [replace(sound, samples=sound.samples[:44_100]) for sound in sounds]
    return [*request.getfixturevalue("recordings")[:2], *halves]


@pytest.mark.slow
def test_transcripts_are_of_the_audio_and_depend_on_nothing_heard_before(
    case: RecognizerCase, ears: Recognizer, opened: Callable[[], Recognizer], heard: Sequence[Audio]
) -> None:
    """In any order, in any process; finished transcripts are kept by the description.

    Moonshine's own call for a whole sound hears "You" in the noise, behind other sounds.
    """
    again = opened()
    first = [ears.transcribe(audio) for audio in heard]
    assert all(first[:2])
    assert len({*first[:2]}) == 2
    assert first[::-1] == [again.transcribe(audio) for audio in heard[::-1]]
    assert again.description == ears.description
    for part in case.described:
        assert part in ears.description


def test_broken_audio_is_a_finding_not_a_crash(
    case: RecognizerCase, ears: Recognizer, heard: Sequence[Audio]
) -> None:
    """No more than a word or two of a trained model, and the next transcript does not change."""
    before = ears.transcribe(heard[0])
    for name, samples in _BROKEN.items():
        found = ears.transcribe(Audio(samples=np.array(samples, np.float32), sample_rate=22_050))
        assert isinstance(found, str), name
        assert case.model or len(found.split()) <= 2, name
    assert not case.steady or ears.transcribe(heard[0]) == before


@pytest.mark.parametrize(
    ("case", "refused"),
    [(case, refused) for case in _CASES for refused in case.refused],
    ids=lambda value: None if isinstance(value, RecognizerCase) else f"{value[0]} {value[1]}",
    indirect=["case"],
)
def test_what_it_does_not_have_is_one_line(
    case: RecognizerCase, refused: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    given, language, message = refused
    with pytest.raises(EvaluationError, match=message) as caught:
        open_recognizer(f"{case.name}{given}", language)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("missing", _CASES[:5], ids=lambda case: case.name)
def test_a_missing_package_names_the_extra(
    missing: RecognizerCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = missing.name.replace("-", "_")
    monkeypatch.delitem(sys.modules, f"tts_compress.evaluation.recognizers.{module}", raising=False)
    for package in missing.packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'tts-compress\[{missing.extra}\]'"):
        open_recognizer(f"{missing.name}:model" if missing.model else missing.name, "en-us")


@pytest.fixture(scope="module")
def whisper(whisper_folders: dict[str, Path]) -> Path:
    return whisper_folders["all"]


@pytest.fixture(scope="module")
def converted_whisper(converted: dict[str, Path]) -> Path:
    return converted["all"]


@pytest.fixture(scope="module")
def nemo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a CTC network in NeMo's form: means of eight frames, and a random projection."""
    tokens, mels = ["▁ja", "▁nein", "▁viel", "st", "en", "ü", "<blk>"], 80
    weight = np.random.default_rng(0).normal(size=(mels, len(tokens))).astype(np.float32)
    pool: dict[str, Any] = {"kernel_shape": [8], "strides": [8], "ceil_mode": 1}
    nodes = [
        helper.make_node("AveragePool", ["audio_signal"], ["means"], **pool),
        helper.make_node("Transpose", ["means"], ["frames"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["frames", "weight"], ["logits"]),
        helper.make_node("LogSoftmax", ["logits"], ["logprobs"], axis=-1),
    ]
    inputs = [
        helper.make_tensor_value_info("audio_signal", TensorProto.FLOAT, ["b", mels, "t"]),
        helper.make_tensor_value_info("length", TensorProto.INT64, ["b"]),
    ]
    output = helper.make_tensor_value_info("logprobs", TensorProto.FLOAT, ["b", "f", len(tokens)])
    weights = [numpy_helper.from_array(weight, "weight")]
    graph = helper.make_graph(nodes, "ctc", inputs, [output], weights)
    root = tmp_path_factory.mktemp("asr") / "nemo"
    root.mkdir()
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), root / "model.onnx")
    vocabulary = "\n".join(f"{token} {index}" for index, token in enumerate(tokens))
    (root / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    settings = {"model_type": "nemo-conformer-ctc", "features_size": mels}
    (root / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def wav2vec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny wav2vec 2.0 whose tokens are letters."""
    pytest.importorskip("transformers.models.wav2vec2")
    import torch
    import transformers

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("ctc") / "wav2vec"
    root.mkdir()
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyzäöü"]
    (root / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    sizes: dict[str, Any] = {
        "vocab_size": len(letters),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "conv_dim": (16,) * 7,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
    }
    config = transformers.Wav2Vec2Config(**sizes, initializer_range=1.0)
    transformers.Wav2Vec2ForCTC(config).save_pretrained(root)
    transformers.Wav2Vec2Processor(
        transformers.Wav2Vec2FeatureExtractor(),
        transformers.Wav2Vec2CTCTokenizer(str(root / "vocab.json")),
    ).save_pretrained(root)
    return root


def test_pickled_weights_are_not_read(wav2vec: Path, tmp_path: Path) -> None:
    """Only safetensors files hold no code."""
    import torch

    for path in wav2vec.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(EvaluationError, match=r"cannot open the model .*safetensors"):
        open_recognizer(f"transformers:{tmp_path}", "de")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(EvaluationError, match=r"'ears'; known: .*pocketsphinx"):
        open_recognizer("ears", "en-us")


@pytest.fixture(scope="module")
def moonshine() -> Recognizer:
    pytest.importorskip("moonshine_voice")
    return open_recognizer("moonshine", "en-us")


def test_a_reader_is_understood(moonshine: Recognizer, recordings: Sequence[Audio]) -> None:
    """Word for word; the embedded recognizer mistakes some of these."""
    assert moonshine.transcribe(recordings[0]) == "In being comparatively modern."


def test_a_folder_is_known_by_its_name(moonshine: Recognizer, tmp_path: Path) -> None:
    """As the library's download leaves it; the language is at the end of the name."""
    from moonshine_voice import get_model_path

    folder = tmp_path / "tiny-de" / "quantized"
    shutil.copytree(get_model_path("tiny-en"), folder)
    other = open_recognizer(f"moonshine:{folder}", "de")
    assert other.description == moonshine.description.replace("tiny-en", "tiny-de")
    (folder / "encoder_model.ort").write_bytes(b"no graph")
    with pytest.raises(EvaluationError, match=r"cannot open the model .* of 'moonshine'") as caught:
        open_recognizer(f"moonshine:{folder}", "de")
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    pytest.importorskip("pocketsphinx")
    return open_recognizer("pocketsphinx", "en-us")


def test_understands_most_of_a_clear_voice(
    recognizer: Recognizer, recordings: Sequence[Audio]
) -> None:
    """At 22.05 kHz, so resampling is part of it."""
    transcript = "in being comparatively modern"
    heard = english_v1(recognizer.transcribe(recordings[0]))
    assert count_edits(transcript, heard, "word").errors <= 2


@pytest.mark.slow
def test_the_front_end_keeps_nothing_of_the_last_utterance() -> None:
    """After the first of these, a decoder that is not reset transcribes the second differently."""
    pytest.importorskip("piper")
    voice = load("demo")
    texts = ("Keep your voice down.", "Several bees buzzed above the purple clover.")
    first, second = (voice.synthesize(text, seed=0) for text in texts)
    fresh, used = open_recognizer("pocketsphinx", "en-us"), open_recognizer("pocketsphinx", "en-us")
    used.transcribe(first)
    assert used.transcribe(second) == fresh.transcribe(second)


_FOLDERS = {"whisper": "converted", "transformers": "whisper_folders"}


@pytest.fixture(params=_FOLDERS)
def given(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return two Whispers as a suite names them: `all` languages, and English `only`."""
    folders = request.getfixturevalue(_FOLDERS[request.param])
    return {name: f"{request.param}:{folder}" for name, folder in folders.items()}


def test_the_suites_language_is_decoded(given: dict[str, str], sounds: list[Audio]) -> None:
    """The language is a token that everything after it depends on."""
    german, chinese = (open_recognizer(given["all"], language) for language in ("de", "cmn"))
    assert german.transcribe(sounds[0]) != chinese.transcribe(sounds[0])
    assert "language zh" in chinese.description


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
    opened = open_recognizer(f"whisper:{moved}", "de")
    assert opened.description == found
    assert "language fr" in open_recognizer(f"whisper:{moved}", "fr").description
    tokens = moved / "tokenizer.json"
    tokens.write_text(tokens.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert opened.description != found


def test_an_english_whisper_of_transformers_has_no_language_to_choose(
    whisper_folders: dict[str, Path],
) -> None:
    ears = open_recognizer(f"transformers:{whisper_folders['only']}", "en-us")
    assert "language" not in ears.description


def test_a_whisper_of_transformers_hears_more_than_half_a_minute(
    whisper_folders: dict[str, Path], sounds: list[Audio]
) -> None:
    ears = open_recognizer(f"transformers:{whisper_folders['only']}", "en-us")
    half_minute = np.resize(sounds[0].samples, 30 * 22_050)
    whole = np.concatenate([half_minute, sounds[1].samples])
    heard = [
        ears.transcribe(Audio(samples=samples, sample_rate=22_050))
        for samples in (half_minute, sounds[1].samples, whole)
    ]
    assert heard[2].split() == f"{heard[0]} {heard[1]}".split()


def _write(folder: Path, **contents: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
    return folder


def test_a_folder_with_a_model_is_found_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact in a folder `small` is not the model of that name."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "small", manifest_json="{}")
    assert find_folder("small") is None
    assert find_folder("someone/small") is None
    model = _write(tmp_path / "mine", config_json="{}")
    assert find_folder("mine") == find_folder(str(model)) == find_folder("./mine") == model
    for path in ("./small", str(tmp_path / "small"), "a/b/c", "~/none"):
        with pytest.raises(EvaluationError, match=r"no folder .* with a model"):
            find_folder(path)


def test_what_decides_a_transcript_is_part_of_the_identity(tmp_path: Path) -> None:
    """The weights, the vocabulary and the settings; neither the place nor the documentation."""
    contents = {"config_json": "{}", "model_bin": "weights", "README_md": "words"}
    one = _write(tmp_path / "one", **contents)
    same = _write(tmp_path / "two", **contents | {"README_md": "other words"})
    found = {
        identify(model_files(_write(tmp_path / name, **contents | {name: "other"})))
        for name in ("config_json", "model_bin", "vocabulary_txt")
    }
    assert identify(model_files(one)) == identify(model_files(same))
    assert len(found | {identify(model_files(one))}) == 4


def test_a_model_of_the_hub_is_its_revision(tmp_path: Path) -> None:
    """Gigabytes need no hash where the hub has one."""
    root = tmp_path / "models--someone--small" / "snapshots"
    folder = _write(root / "0123456789abcdef", config_json="{}")
    assert identify(model_files(folder)) == "revision 0123456789ab"
    elsewhere = _write(tmp_path / "snapshots" / "0123456789abcdef", config_json="{}")
    assert identify(model_files(elsewhere)).startswith("files ")
