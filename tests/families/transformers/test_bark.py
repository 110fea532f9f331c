"""Bark by transformers' own class: three language models and a codec."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.conformance import compressed
from tests.measures import snr_db
from tts_compress.errors import ModelError, TextError
from tts_compress.models import load
from tts_compress.models.torch_noise import paired_noise

TEXT = "call at ten"


def test_it_speaks_as_the_official_object(bark: Any, bark_dir: Path, transformers: Any) -> None:
    official = transformers.BarkModel.from_pretrained(bark_dir).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bark_dir)
    inputs = transformers.BarkProcessor(tokenizer)(TEXT, max_length=160)
    with paired_noise(7):
        expected = official.generate(**inputs)
    found = bark.synthesize(TEXT, seed=7)
    np.testing.assert_array_equal(found.samples, expected.reshape(-1).numpy())
    assert found.sample_rate == 24_000
    assert np.abs(found.samples).max() > 0.01


def test_the_same_tokens_make_nearly_the_same_sound(bark: Any) -> None:
    """Language models apart: the codec's decoder is given the same codes."""
    import torch

    small = compressed(bark, "int8")
    codes = torch.randint(16, (8, 1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        embedded = bark.root().codec_model.quantizer.decode(codes)
        before, after = (each.root().codec_model.decoder(embedded) for each in (bark, small))
    assert 20 < snr_db(before.numpy(), after.numpy()) < 60


@pytest.mark.slow
def test_a_preset_is_a_speech_to_go_on_from(bark: Any, bark_dir: Path, tmp_path: Path) -> None:
    voice = shutil.copytree(bark_dir, tmp_path / "voice")
    draw = np.random.default_rng(0).integers
    prompts: dict[str, Any] = {
        "coarse_prompt": draw(16, size=(2, 30)),
        "fine_prompt": draw(16, size=(8, 30)),
    }
    np.savez(voice / "speaker.npz", semantic_prompt=draw(20, size=20), **prompts)
    model = load(f"transformers:{voice}")
    found = model.synthesize(TEXT, seed=0).samples
    plain = bark.synthesize(TEXT, seed=0).samples
    assert found.shape != plain.shape or not np.array_equal(found, plain)
    small = compressed(model, "int8")
    again = load(small.save(tmp_path / "int8")).synthesize(TEXT, seed=0).samples
    np.testing.assert_array_equal(again, small.synthesize(TEXT, seed=0).samples)

    np.savez(voice / "speaker.npz", semantic_prompt=np.zeros((2, 2), int), **prompts)
    with pytest.raises(ModelError, match="give integers of 1 dimensions as 'semantic_prompt'"):
        load(f"transformers:{voice}").synthesize(TEXT, seed=0)


def test_a_long_text_is_refused_rather_than_cut(bark: Any) -> None:
    with pytest.raises(TextError, match="has 180 tokens; give a text of 1 to 160"):
        bark.synthesize("again " * 30, seed=0)


def test_without_settings_of_generation_it_does_not_speak(bark_dir: Path, tmp_path: Path) -> None:
    voice = shutil.copytree(bark_dir, tmp_path / "voice")
    (voice / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=r"no generation_config\.json"):
        load(f"transformers:{voice}").synthesize(TEXT, seed=0)
