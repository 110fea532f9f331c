"""The files of a saved model: what they hold, and the recording that they keep."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.f5.model import F5Model
from tts_compress.models.f5.network import F5Options

_TEXT = "hello there."


def test_a_file_holds_codes_and_halves_and_components_count_them(
    tiny_f5: F5Model, tmp_path: Path
) -> None:
    from safetensors import safe_open

    artifact = compress(tiny_f5, "int8").save(tmp_path / "small")
    with safe_open(artifact / "model.safetensors", framework="np") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds["transformer.transformer_blocks.0.attn.to_q.weight"] == "I8"
    assert kinds["transformer.proj_out.weight"] == kinds["vocoder.backbone.embed.weight"] == "F16"
    assert kinds["vocoder.backbone.norm.weight"] == "F32"
    before, after = tiny_f5.components(), F5Model.open(str(artifact), "small").components()
    for name, component in before.items():
        assert after[name].parameters == component.parameters
        assert after[name].operators == component.operators
    blocks = after["transformer.transformer_blocks"]
    assert blocks.parameters < blocks.size_bytes < 1.1 * blocks.parameters
    assert after["transformer.proj_out"].size_bytes == 2 * 6400


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_recording_is_kept_as_16_bits(tiny_f5: F5Model, tmp_path: Path, subtype: str) -> None:
    import soundfile

    wave, rate = soundfile.read(tiny_f5.prompt.audio)
    wave = wave * 2 ** np.floor(-np.log2(np.abs(wave).max()))  # loud, and exact in 16 bits
    assert np.abs(wave).max() > 0.5
    path = tmp_path / "prompt.wav"
    soundfile.write(path, np.stack([wave, wave], axis=1), rate, subtype=subtype)
    model = tiny_f5.with_prompt(Prompt(audio=path, text="one two three."))
    saved = F5Model.open(str(model.save(tmp_path / "saved")), "saved")
    kept, _ = soundfile.read(saved.prompt.audio)
    assert np.array_equal(kept[:, 0], wave)
    assert saved.prompt.text == "one two three."
    assert np.array_equal(
        saved.synthesize(_TEXT, seed=0).samples, model.synthesize(_TEXT, seed=0).samples
    )


def test_a_model_without_a_recording_is_saved_without(tiny_f5: F5Model, tmp_path: Path) -> None:
    silent = replace(tiny_f5.with_options(F5Options(speed=1.5)), prompt=Prompt())
    saved = F5Model.open(str(silent.save(tmp_path / "silent")), "silent")
    assert saved.options == replace(F5Options(), speed=1.5)
    assert saved.describe()["recording"] == "none"
    for refused in (lambda: saved.synthesize(_TEXT, seed=0), lambda: saved.open_runtime(threads=1)):
        with pytest.raises(ModelError, match=r"no recording to speak by; put reference\.wav"):
            refused()
