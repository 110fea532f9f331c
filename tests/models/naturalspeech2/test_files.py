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
    read_config,
    read_settings,
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
    for steps in (1, 12, 10_000):
        model = NaturalSpeech2Model.open(f"{folder}?inference_step={steps}", "x")
        assert model.options == NS2Options(inference_step=steps)
    for wrong, message in (
        ("inference_step", "inference_step=20"),
        ("steps=12", "'x' states 'steps'; there are inference_step"),
        ("inference_step=0", "inference_step is 0; give an integer from 1 to 10000"),
        ("inference_step=10001", "inference_step is 10001; give an integer"),
    ):
        with pytest.raises(ModelError, match=message):
            NaturalSpeech2Model.open(f"{folder}?{wrong}", "x")


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


def test_a_file_is_built_on_others_of_the_clone(tmp_path: Path) -> None:
    pytest.importorskip("json5")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "base.json").write_text(
        '{"model": {"a": 1, "b": [1], "c": {"d": 1}}, "other": 3}'
    )
    (tmp_path / "config" / "middle.json").write_text(
        '{"base_config": "config/base.json", "model": {"b": [2, 3],}, // two\n}'
    )
    path = tmp_path / "elsewhere.json"
    path.write_text('{"base_config": "config/middle.json", "model": {"c": {"e": 2}}}')
    found = read_config(path, tmp_path)
    assert found["model"] == {"a": 1, "b": [2, 3], "c": {"d": 1, "e": 2}}
    assert found["other"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"base_config": "loop.json"}', "built on each other"),
        ('{"base_config": 3}', "base_config is 3"),
        ('{"base_config": "missing.json"}', "missing.json"),
        ("[1]", "holds a list"),
        ("{", "cannot read"),
        ("[" * 100_000, "cannot read"),
        (" " * (1 << 18), "cannot read"),
        ("\udcff", "cannot read"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    pytest.importorskip("json5")
    path = tmp_path / "loop.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=message):
        read_config(path, tmp_path)


def test_the_systems_own_settings_pass(model_section: dict[str, Any]) -> None:
    found = check_settings({"model": model_section}, "here")
    assert found.model == model_section
    assert found.lexicon == "./text/lexicon/librispeech-lexicon.txt"
    assert found.options == NS2Options(inference_step=200)
    given = {"model": model_section, "preprocess": {"lexicon_path": "words.txt"}}
    assert check_settings(given, "here").lexicon == "words.txt"


def test_settings_are_read_as_they_were_written(
    model_section: dict[str, Any], tmp_path: Path
) -> None:
    found = check_settings({"model": model_section}, "here")
    path = tmp_path / "settings.json"
    path.write_text(found.to_json())
    assert read_settings(path) == found
    path.write_text(found.to_json().replace("200", "12"))
    assert read_settings(path).options.inference_step == 12


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {}, "lexicon": 1}', '"model"'])
def test_a_damaged_file_of_settings_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"settings\.json"):
        read_settings(path)


def _set(model: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        model = model[part]
    model[last] = value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("latent_dim", 64, "latent_dim is 64: Input should be 128"),
        (
            "prior_encoder.encoder.encoder_layer",
            0,
            "encoder_layer is 0: .* greater than or equal to 1",
        ),
        ("prior_encoder.encoder.encoder_layer", 2.0, "encoder_layer is 2.0"),
        ("prior_encoder.encoder.use_cln", 1, "use_cln is 1: .* a valid boolean"),
        ("prior_encoder.pitch_min", "low", "pitch_min is 'low': .* a valid number"),
        ("prior_encoder.pitch_min", float("nan"), "pitch_min is nan"),
        ("diffusion.diffusion_type", "score", "should be 'diffusion' or 'flow'"),
        ("diffusion.wavenet.dilation_cycle", 40, "less than or equal to 16"),
        ("diffusion.wavenet.num_layers", True, "num_layers is True"),
        ("diffusion.wavenet", [], r"wavenet is \[\]: .* a valid dictionary"),
        ("prompt_encoder.encoder_hidden", 128, "upstream runs no such"),
    ],
)
def test_a_wrong_value_is_named(
    model_section: dict[str, Any], name: str, value: Any, message: str
) -> None:
    _set(model_section, name, value)
    with pytest.raises(
        ModelError, match=rf"(?s)'args.json' describes no NaturalSpeech2.*{message}"
    ):
        check_settings({"model": model_section}, "'args.json'")


def test_everything_wrong_is_named_at_once(model_section: dict[str, Any]) -> None:
    del model_section["query_emb"]["head_num"]
    _set(model_section, "diffusion.sigma", None)
    given = {"model": model_section, "preprocess": {"lexicon_path": 3}}
    with pytest.raises(ModelError) as caught:
        check_settings(given, "here")
    for part in ("query_emb.head_num is missing", "sigma is None", "lexicon_path is 3"):
        assert part in str(caught.value)


@pytest.mark.parametrize("config", [{}, {"model": []}, {"model": json.loads("null")}])
def test_a_configuration_of_something_else_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="no section 'model'"):
        check_settings(config, "here")
