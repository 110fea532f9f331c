"""CSM by transformers' own class: two language models of tokens and a codec."""

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


def test_it_speaks_as_the_official_object(csm: Any, csm_dir: Path, transformers: Any) -> None:
    official = transformers.CsmForConditionalGeneration.from_pretrained(csm_dir).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(csm_dir)
    with paired_noise(7):
        said = official.generate(**tokenizer(f"[0]{_TEXT}", return_tensors="pt"), output_audio=True)
    spoken = csm.synthesize(_TEXT, seed=7)
    np.testing.assert_array_equal(spoken.samples, said[0].numpy())
    assert spoken.sample_rate == 2400


def test_speech_and_text_are_bounded(csm: Any, csm_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="give a text of 1 to 244"):
        csm.synthesize("again " * 50, seed=0)
    voice = shutil.copytree(csm_dir, tmp_path / "voice")
    settings = json.loads((voice / "generation_config.json").read_text(encoding="utf-8"))
    del settings["max_new_tokens"]
    (voice / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match="has max_new_tokens None"):
        load(f"transformers:{voice}").synthesize(_TEXT, seed=0)
