"""SpeechT5 and FastSpeech2 by transformers' own classes: a spectrogram, then a vocoder."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.conformance import compressed
from tests.measures import snr_db
from tts_compress.errors import ModelError, TextError
from tts_compress.models import load
from tts_compress.models.execution import Execution
from tts_compress.models.torch_noise import paired_noise

TEXT = "ten"


def test_speecht5_speaks_as_the_official_object(
    speecht5: Any, speecht5_dir: Path, transformers: Any
) -> None:
    import torch

    official = transformers.SpeechT5ForTextToSpeech.from_pretrained(speecht5_dir).eval()
    vocoder = transformers.SpeechT5HifiGan.from_pretrained(speecht5_dir / "vocoder").eval()
    ids = transformers.AutoTokenizer.from_pretrained(speecht5_dir)(TEXT, return_tensors="pt")
    with paired_noise(7):
        expected = official.generate_speech(
            ids["input_ids"],
            torch.zeros(1, 8),
            attention_mask=ids["attention_mask"],
            vocoder=vocoder,
        )
    found = speecht5.synthesize(TEXT, seed=7)
    np.testing.assert_array_equal(found.samples, expected.numpy())
    assert found.sample_rate == 16_000
    assert 0.01 < np.abs(found.samples).max() < 1


def test_fastspeech2_speaks_as_the_official_object(
    fastspeech2: Any, fastspeech2_dir: Path, transformers: Any
) -> None:
    import torch

    official = transformers.FastSpeech2ConformerWithHifiGan.from_pretrained(fastspeech2_dir).eval()
    ids = transformers.AutoTokenizer.from_pretrained(fastspeech2_dir)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = official(ids["input_ids"], return_dict=True).waveform.reshape(-1)
    found = fastspeech2.synthesize(TEXT, seed=7)
    np.testing.assert_array_equal(found.samples, expected.numpy())
    assert found.sample_rate == 22_050
    assert 0.01 < np.abs(found.samples).max() < 1


def test_the_files_of_speecht5_are_both_models(speecht5: Any, speecht5_dir: Path) -> None:
    weights = {path.relative_to(speecht5_dir).as_posix() for path in speecht5.files().weights}
    assert weights == {"model.safetensors", "vocoder/model.safetensors"}


def test_an_original_speecht5_is_saved_as_two_official_models(
    speecht5: Any, tmp_path: Path, transformers: Any
) -> None:
    saved = speecht5.save(tmp_path / "copy")
    whole = transformers.SpeechT5ForTextToSpeech.from_pretrained(saved).state_dict()
    vocoder = transformers.SpeechT5HifiGan.from_pretrained(saved / "vocoder").state_dict()
    expected = speecht5.root().state_dict()
    assert whole.keys() | {f"vocoder.{name}" for name in vocoder} == expected.keys()
    assert all(tensor.equal(expected[name]) for name, tensor in whole.items())


def test_a_vocoder_may_lie_elsewhere(speecht5: Any, speecht5_dir: Path, tmp_path: Path) -> None:
    voice = shutil.copytree(speecht5_dir, tmp_path / "voice")
    vocoder = shutil.move(voice / "vocoder", tmp_path / "vocoder")
    found = load(f"transformers:{voice},{vocoder}").synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(found, speecht5.synthesize(TEXT, seed=0).samples)
    with pytest.raises(ModelError, match="is of type 'speecht5'; accepted: speecht5_hifigan"):
        load(f"transformers:{voice},{voice}")


@pytest.mark.slow
def test_a_speaker_is_an_embedding_beside_the_voice(
    speecht5: Any, speecht5_dir: Path, tmp_path: Path
) -> None:
    voice = shutil.copytree(speecht5_dir, tmp_path / "voice")
    np.save(voice / "speaker.npy", np.arange(8.0))
    other = load(f"transformers:{voice}")
    said = other.synthesize(TEXT, seed=0).samples
    assert not np.array_equal(said, speecht5.synthesize(TEXT, seed=0).samples)
    small = compressed(other, "int8")
    saved = small.save(tmp_path / "int8")
    found = load(saved).synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(found, small.synthesize(TEXT, seed=0).samples)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.arange(7.0), r"give 8 numbers, not shape \(7,\)"),
        (np.full(8, np.nan), "its numbers are not finite"),
        (
            np.array([{}] * 8, dtype=object),
            "is no embedding of a speaker: it is no plain array .pickled objects are never",
        ),
        (np.zeros(1 << 20), "at most 4,194,304 are accepted"),
    ],
)
def test_a_speaker_that_is_none_is_refused(
    speecht5_dir: Path, tmp_path: Path, content: Any, message: str
) -> None:
    voice = shutil.copytree(speecht5_dir, tmp_path / "voice")
    np.save(voice / "speaker.npy", content, allow_pickle=True)
    with pytest.raises(ModelError, match=message):
        load(f"transformers:{voice}").synthesize(TEXT, seed=0)


def test_a_voice_with_its_vocoder_inside_takes_no_other(fastspeech2_dir: Path) -> None:
    with pytest.raises(ModelError, match="needs no vocoder; leave ',one/other' out"):
        load(f"transformers:{fastspeech2_dir},one/other")


@pytest.mark.parametrize("name", ["speecht5", "fastspeech2"])
def test_a_text_has_a_limit(request: pytest.FixtureRequest, name: str) -> None:
    voice = request.getfixturevalue(name)
    with pytest.raises(TextError, match=r"tokens; give a text of 1 to"):
        voice.synthesize("again " * 1000, seed=0)


@pytest.mark.slow
def test_integers_made_on_a_gpu_are_spoken_there_and_here(
    fastspeech2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear layers multiply integers there, and convolutions floats; no GPU is needed."""
    from tests.pretend import pretend_gpu

    before = fastspeech2.synthesize(TEXT, seed=0).samples
    with pretend_gpu(monkeypatch):
        small = compressed(fastspeech2.on(Execution(device="cuda")), "int8")
        assert small.execution.device == "cuda:0"
        assert small.manifest.counts["Linear int8/dynamic"] == 10
        spoken = small.synthesize(TEXT, seed=0).samples
        saved = small.save(tmp_path / "int8")
        again = load(saved, device="cuda").synthesize(TEXT, seed=0).samples
        np.testing.assert_array_equal(again, spoken)
    assert snr_db(before, spoken) > 30
    assert snr_db(spoken, load(saved).synthesize(TEXT, seed=0).samples) > 35
