"""transformers, with tiny models of random weights: one with CTC, and Whispers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.evaluation.recognizers import open_recognizer

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.audio import Audio


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny wav2vec 2.0 whose tokens are letters."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("transformers.models.wav2vec2")
    import torch

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("ctc")
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyzäöü"]
    vocabulary = root / "vocab.json"
    vocabulary.write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    config = transformers.Wav2Vec2Config(
        vocab_size=len(letters),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(16,) * 7,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        initializer_range=1.0,
    )
    transformers.Wav2Vec2ForCTC(config).save_pretrained(root)
    transformers.Wav2Vec2Processor(
        transformers.Wav2Vec2FeatureExtractor(),
        transformers.Wav2Vec2CTCTokenizer(str(vocabulary)),
    ).save_pretrained(root)
    return root


def test_a_ctc_model_transcribes_alike_each_time(ctc: Path, sounds: list[Audio]) -> None:
    ears = open_recognizer(f"transformers:{ctc}", "de")
    first = [ears.transcribe(audio) for audio in sounds]
    assert all(first)
    assert len({*first}) == 2
    again = open_recognizer(f"transformers:{ctc}", "de")
    assert first[::-1] == [again.transcribe(audio) for audio in sounds[::-1]]
    assert f"Wav2Vec2ForCTC {ctc.name} (files " in ears.description
    assert again.description == ears.description


def test_a_whisper_decodes_the_suites_language(
    whisper_folders: dict[str, Path], sounds: list[Audio]
) -> None:
    given = f"transformers:{whisper_folders['all']}"
    heard = {code: open_recognizer(given, code).transcribe(sounds[0]) for code in ("de", "cmn")}
    assert len({*heard.values()}) == 2
    assert open_recognizer(given, "de").transcribe(sounds[0]) == heard["de"]
    assert "WhisperForConditionalGeneration" in open_recognizer(given, "de").description
    assert "language zh" in open_recognizer(given, "cmn").description


def test_an_english_whisper_refuses_german(whisper_folders: dict[str, Path]) -> None:
    given = f"transformers:{whisper_folders['only']}"
    with pytest.raises(EvaluationError, match="does not know the suite's language 'de'"):
        open_recognizer(given, "de")
    assert "language" not in open_recognizer(given, "en-us").description


def test_broken_audio_is_a_finding_not_a_crash(
    ctc: Path, whisper_folders: dict[str, Path], broken: Audio
) -> None:
    for folder in (ctc, whisper_folders["all"]):
        assert isinstance(open_recognizer(f"transformers:{folder}", "de").transcribe(broken), str)


def test_pickled_weights_are_not_read(ctc: Path, tmp_path: Path) -> None:
    """Only safetensors files hold no code."""
    import torch

    for path in ctc.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(EvaluationError, match=r"cannot open the model .*safetensors"):
        open_recognizer(f"transformers:{tmp_path}", "de")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "'transformers' needs a model"),
        ("/no/such/folder", "no folder '/no/such/folder' with a model"),
        ("someone/model", "cannot open the model 'someone/model' of 'transformers': "),
    ],
)
def test_a_model_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, model: str, message: str
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EvaluationError, match=message) as caught:
        open_recognizer(f"transformers:{model}", "de")
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tts-compress\[transformers\]'"):
        open_recognizer("transformers:model", "de")
