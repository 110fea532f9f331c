"""VibeVoice by transformers' own class: a language model, a diffusion head and two codecs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.tiny import write_voice
from tts_compress.errors import MissingExtraError, TextError
from tts_compress.models import load
from tts_compress.models.base import Prompt, Speaking
from tts_compress.models.torch_noise import noise_by_step, paired_noise

_TEXT = "call at ten"


@pytest.mark.slow
def test_it_speaks_as_the_official_objects(
    vibevoice: Any, vibevoice_dir: Path, transformers: Any, tmp_path: Path
) -> None:
    """Also in the voice of a recording at the codec's own rate, which is heard with noise."""
    import soundfile

    samples = (0.1 * np.sin(np.arange(1600) / 7)).astype(np.float32)
    soundfile.write(tmp_path / "voice.wav", samples, 2400, subtype="FLOAT")
    kind = transformers.VibeVoiceForConditionalGeneration
    official = kind.from_pretrained(vibevoice_dir).eval()
    processor = transformers.AutoProcessor.from_pretrained(vibevoice_dir)
    text, heard = {"type": "text", "text": _TEXT}, {"type": "audio", "audio": samples}
    prompt = Prompt(audio=tmp_path / "voice.wav")
    recorded = vibevoice.speaking_as(Speaking(prompt=prompt))
    for voice, content in ((vibevoice, [text]), (recorded, [text, heard])):
        conversation = [{"role": "0", "content": content}]
        inputs = processor.apply_chat_template(
            conversation, tokenize=True, return_dict=True, return_tensors="pt"
        )
        with paired_noise(7), noise_by_step(official):
            (said,) = official.generate(**inputs)
        spoken = voice.synthesize(_TEXT, seed=7)
        np.testing.assert_array_equal(spoken.samples, said.reshape(-1).numpy())
        assert spoken.samples.shape == (12 * 8,)
        assert spoken.sample_rate == 2400


def test_speech_and_text_are_bounded(vibevoice: Any, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="leaves no room for its speech in 256 positions"):
        vibevoice.synthesize("a" * 254, seed=0)
    assert vibevoice.synthesize("a" * 250, seed=0).samples.shape == (5 * 8,)
    write_voice(tmp_path / "voice.wav", seconds=1.0)
    recorded = vibevoice.speaking_as(Speaking(prompt=Prompt(audio=tmp_path / "voice.wav")))
    with pytest.raises(TextError, match="give a shorter text or recording"):
        recorded.synthesize(_TEXT, seed=0)


def test_without_its_solver_it_is_refused(
    vibevoice_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_compress.models.transformers.latents.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"diffusers.*tts-compress\[transformers-tts\]"):
        load(f"transformers:{vibevoice_dir}").synthesize(_TEXT, seed=0)
