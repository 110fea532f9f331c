"""A folder's content is found without Amphion; errors name what it lacks and what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.naturalspeech2 import AMPHION
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.network import (
    CODEC,
    CODEC_VARIABLE,
    SETTINGS,
    NS2Options,
    NS2Source,
    check_settings,
)


def _source(folder: Path) -> NS2Source:
    return NS2Source(directory=folder)


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model.safetensors"])
def test_a_checkpoint_is_opened_without_the_clone(
    make_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    monkeypatch.delenv(AMPHION.variable, raising=False)
    folder = make_checkpoint(weights=weights)
    (folder / "reference.flac").write_bytes(b"")
    model = NaturalSpeech2Model.open(str(folder), "naturalspeech2:here")
    assert model.spec == "naturalspeech2:here"
    assert model.manifest is None
    assert model.prompt == Prompt(audio=folder / "reference.flac")
    files = model.files()
    assert files.weights == (folder / weights, folder / CODEC)
    assert files.settings == (folder / "reference.flac",)
    with pytest.raises(ModelError, match=rf"(?s)git|clone.*{AMPHION.variable}"):
        model.root()


def test_steps_are_named_behind_the_folder(make_checkpoint: Callable[..., Path]) -> None:
    folder = make_checkpoint()
    assert NaturalSpeech2Model.open(str(folder), "x").options == NS2Options()
    model = NaturalSpeech2Model.open(f"{folder}?inference_step=12", "x")
    assert model.options == NS2Options(inference_step=12)
    with pytest.raises(ModelError, match="inference_step=20"):
        NaturalSpeech2Model.open(f"{folder}?inference_step", "x")
    with pytest.raises(ModelError, match="'the spec' states 'steps'"):
        NaturalSpeech2Model.open(f"{folder}?steps=12", "the spec")


def test_what_is_no_checkpoint_is_refused(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_checkpoint()
    with pytest.raises(ModelError, match="is not there"):
        NaturalSpeech2Model.open(str(tmp_path / "nowhere"), "x")
    with pytest.raises(ModelError, match="is no folder"):
        NaturalSpeech2Model.open(str(folder / "pytorch_model.bin"), "x")
    with pytest.raises(ModelError, match=r"no pytorch_model.bin or .*; '.*epoch-0089.*' does"):
        NaturalSpeech2Model.open(str(tmp_path / "experiment"), "x")
    (folder / SETTINGS).write_text("{}")
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        NaturalSpeech2Model.open(str(folder), "x")


def test_the_experiments_settings_go_before_the_clones(
    make_checkpoint: Callable[..., Path], clone: Path, model_section: dict[str, Any]
) -> None:
    pytest.importorskip("json5")
    changed = model_section | {"query_emb": {**model_section["query_emb"], "query_token_num": 7}}
    folder = make_checkpoint()
    assert _source(folder).config() is None
    own = _source(folder).settings(clone)
    assert own.model == model_section
    args = folder.parent.parent / "args.json"
    args.write_text(json.dumps({"base_config": "config/ns2.json", "model": changed}))
    assert _source(folder).config() == args
    assert _source(folder).settings(clone).model["query_emb"]["query_token_num"] == 7
    (folder / "exp_config.json").write_text('{"base_config": "config/ns2.json"}')
    assert _source(folder).settings(clone) == own


def test_a_saved_models_settings_need_no_clone(
    make_checkpoint: Callable[..., Path], model_section: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_checkpoint(weights="model.safetensors", config="not read")
    settings = check_settings({"model": model_section}, "here")
    (folder / SETTINGS).write_text(settings.to_json())
    (folder / CODEC).unlink()
    source = _source(folder)
    assert source.settings(tmp_path) == settings
    assert source.files().weights == (folder / "model.safetensors",)
    (folder / SETTINGS).write_text("{}")
    with pytest.raises(ModelError, match=r"settings\.json"):
        NaturalSpeech2Model.open(str(folder), "x")


def test_the_codecs_weights_are_looked_for_where_people_have_them(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint()
    source = _source(folder)
    assert source.codec() == folder / CODEC
    (folder / CODEC).unlink()
    with pytest.raises(ModelError, match=rf"(?s){CODEC}.*fetch https.*{CODEC_VARIABLE}"):
        source.codec()
    cached = tmp_path / "hub" / "hub" / "checkpoints" / CODEC
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"codec")
    assert source.codec() == cached
    monkeypatch.delenv("TORCH_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match=r"cache.torch.hub.checkpoints"):
        source.codec()
    named = tmp_path / "mine.th"
    monkeypatch.setenv(CODEC_VARIABLE, str(named))
    with pytest.raises(ModelError, match=r"mine\.th.*no file"):
        source.codec()
    named.write_bytes(b"codec")
    assert source.codec() == named


def test_a_recording_is_checked_before_anything_is_loaded(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import numpy as np
    import soundfile

    model = NaturalSpeech2Model.open(str(make_checkpoint()), "naturalspeech2:here")
    with pytest.raises(ModelError, match=r"no recording to speak by; put reference\.wav"):
        model.synthesize("hello", seed=0)
    recording = tmp_path / "voice.wav"
    with pytest.raises(ModelError, match="cannot read audio"):
        model.with_prompt(Prompt(audio=recording))
    soundfile.write(recording, np.zeros(2_400), 24_000)
    with pytest.raises(ModelError, match=r"is 0\.1 s long; give a recording of 0\.5 to 60 s"):
        model.with_prompt(Prompt(audio=recording))
    soundfile.write(recording, np.zeros(24_000), 24_000)
    assert model.with_prompt(Prompt(audio=recording)).prompt.audio == recording
    assert model.with_prompt(Prompt(text="not asked for")).prompt.audio == model.prompt.audio
