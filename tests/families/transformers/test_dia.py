"""Dia by transformers' own class: a language model of several codebooks, and DAC beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError, TextError
from tts_compress.models import load
from tts_compress.models.torch_noise import paired_noise

_TEXT = "call at ten"


def test_it_speaks_as_the_official_object(dia: Any, dia_dir: Path, transformers: Any) -> None:
    official = transformers.DiaForConditionalGeneration.from_pretrained(dia_dir).eval()
    codec = transformers.DacModel.from_pretrained(dia_dir / "vocoder").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(dia_dir)
    processor = transformers.DiaProcessor(transformers.DiaFeatureExtractor(), tokenizer, codec)
    special = {"bos_token_id": 66, "eos_token_id": 64, "pad_token_id": 65}
    audio = special | {"delay_pattern": [0, 2, 3]}
    inputs = processor(text=[f"[S1] {_TEXT}"], **audio)
    with paired_noise(7):
        said = processor.decode(official.generate(**inputs), **audio)
    spoken = dia.synthesize(_TEXT, seed=7)
    np.testing.assert_array_equal(spoken.samples, said.numpy())
    assert len(spoken.samples) > 8
    assert spoken.sample_rate == 2400


@pytest.mark.parametrize("longest", [20, 253])
def test_speech_and_text_are_bounded(dia: Any, dia_dir: Path, tmp_path: Path, longest: int) -> None:
    with pytest.raises(TextError, match="give a text of 1 to 256"):
        dia.synthesize("again " * 50, seed=0)
    voice = shutil.copytree(dia_dir, tmp_path / "voice")
    settings = json.loads((voice / "generation_config.json").read_text(encoding="utf-8"))
    changed = json.dumps(settings | {"max_length": longest})
    (voice / "generation_config.json").write_text(changed, encoding="utf-8")
    changed_voice = load(f"transformers:{voice}")
    if longest == 20:
        assert len(changed_voice.synthesize(_TEXT, seed=0).samples) <= 8 * 20
    else:  # and the last codebook is three steps late
        with pytest.raises(ModelError, match="has max_length 253"):
            changed_voice.synthesize(_TEXT, seed=0)


def test_another_codec_is_refused(dia_dir: Path, tmp_path: Path) -> None:
    voice = shutil.copytree(dia_dir, tmp_path / "voice")
    shutil.copyfile(voice / "config.json", voice / "vocoder" / "config.json")
    with pytest.raises(ModelError, match="is of type 'dia'; accepted: dac"):
        load(f"transformers:{voice}")
