"""Higgs Audio V2 by transformers' own class: a language model of all codebooks, and its codec."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.tiny import write_voice
from tts_compress.errors import ModelError, TextError
from tts_compress.models import load
from tts_compress.models.base import Prompt, Speaking
from tts_compress.models.torch_noise import noise_by_step, paired_noise

_TEXT = "call at ten"


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def test_it_speaks_as_the_official_objects(higgs: Any, higgs_dir: Path, transformers: Any) -> None:
    """With noise that begins anew at each step, though repeated tokens are drawn again."""
    official = transformers.HiggsAudioV2ForConditionalGeneration.from_pretrained(higgs_dir).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(higgs_dir)
    features = transformers.AutoFeatureExtractor.from_pretrained(higgs_dir)
    special = {"chat_template": tokenizer.chat_template, "audio_delay_token": "<|audio_delay|>"}
    stream = {"audio_stream_bos_id": 64, "audio_stream_eos_id": 65}
    processor = transformers.HiggsAudioV2Processor(features, tokenizer, None, **special, **stream)
    processor.audio_tokenizer = higgs.root().vocoder
    conversation = [
        _message("system", "Generate audio following instruction."),
        _message("scene", "Audio is recorded from a quiet room."),
        _message("user", _TEXT),
    ]
    inputs = processor.apply_chat_template(
        conversation,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    with paired_noise(7), noise_by_step(official):
        said = processor.decode(official.generate(**inputs))
    spoken = higgs.synthesize(_TEXT, seed=7)
    np.testing.assert_array_equal(spoken.samples, said.numpy())
    assert len(spoken.samples) > 320
    assert spoken.sample_rate == 2400


def test_it_speaks_as_a_recording_whose_words_are_known(higgs: Any, tmp_path: Path) -> None:
    write_voice(tmp_path / "voice.wav", seconds=0.6)
    recording = tmp_path / "voice.wav"
    prompt = Prompt(audio=recording, text="hello there")
    other = higgs.speaking_as(Speaking(prompt=prompt))
    said = other.synthesize(_TEXT, seed=0).samples
    assert not np.array_equal(said, higgs.synthesize(_TEXT, seed=0).samples)
    saved: Any = load(f"transformers:{other.save(tmp_path / 'saved')}")
    assert saved.prompt.text == "hello there"
    np.testing.assert_array_equal(saved.synthesize(_TEXT, seed=0).samples, said)
    unheard = higgs.speaking_as(Speaking(prompt=Prompt(audio=recording)))
    with pytest.raises(ModelError, match=r"not known what is said in .* reference\.txt"):
        unheard.synthesize(_TEXT, seed=0)


def test_settings_of_sound_may_have_a_file_of_their_own(higgs_dir: Path, tmp_path: Path) -> None:
    """As older releases have it; what was saved of such a voice could not speak."""
    voice = shutil.copytree(higgs_dir, tmp_path / "voice")
    path = voice / "processor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    sound = json.dumps(settings.pop("feature_extractor"))
    (voice / "preprocessor_config.json").write_text(sound, encoding="utf-8")
    path.write_text(json.dumps(settings), encoding="utf-8")
    original = load(f"transformers:{voice}")
    again: Any = load(f"transformers:{original.save(tmp_path / 'again')}")
    said = original.synthesize(_TEXT, seed=0).samples
    np.testing.assert_array_equal(again.synthesize(_TEXT, seed=0).samples, said)


def test_speech_and_text_are_bounded(higgs: Any, higgs_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="leaves no room for its speech in 256 positions"):
        higgs.synthesize("a" * 175, seed=0)
    voice = shutil.copytree(higgs_dir, tmp_path / "voice")
    path = voice / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for longest in (None, 9999):
        path.write_text(json.dumps(settings | {"max_new_tokens": longest}), encoding="utf-8")
        said = load(f"transformers:{voice}").synthesize(_TEXT, seed=0).samples
        assert 320 < len(said) < 256 * 320


@pytest.mark.slow
def test_a_codec_needs_no_torchaudio(higgs_dir: Path) -> None:
    """Wherever transformers looked for it before."""
    script = (
        "import sys; sys.modules['torchaudio'] = None; import transformers;"
        "transformers.AutoTokenizer; del sys.modules['torchaudio'];"
        "from tts_compress.models import load;"
        f"print(len(load('transformers:{higgs_dir}').synthesize('{_TEXT}', seed=0).samples))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) > 320
