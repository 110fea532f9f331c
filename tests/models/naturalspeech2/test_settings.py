"""Settings are checked before upstream's code is given them; all that is wrong is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.naturalspeech2.settings import NS2Options, check_settings, read_settings

if TYPE_CHECKING:
    from pathlib import Path


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
        ("latent_dim", 64, "latent_dim is 64, not 128"),
        ("prior_encoder.encoder.encoder_layer", 0, "an integer from 1 to 1000"),
        ("prior_encoder.encoder.encoder_layer", 2.0, "encoder_layer is 2.0"),
        ("prior_encoder.encoder.use_cln", 1, "use_cln is 1, not true or false"),
        ("prior_encoder.pitch_min", "low", "pitch_min is 'low', not a number"),
        ("prior_encoder.pitch_min", float("nan"), "pitch_min is nan"),
        ("diffusion.diffusion_type", "score", "'diffusion' or 'flow'"),
        ("diffusion.wavenet.dilation_cycle", 40, "from 1 to 16"),
        ("diffusion.wavenet.num_layers", True, "num_layers is True"),
        ("diffusion.wavenet", [], "wavenet is .*, not a section"),
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


def test_steps_are_checked() -> None:
    assert NS2Options().changed({"inference_step": 12}, "here") == NS2Options(inference_step=12)
    for steps in (0, 10_001, 1.5, "²", ""):
        with pytest.raises(ModelError, match=f"inference_step is {steps!r}; give an integer"):
            NS2Options().changed({"inference_step": steps}, "here")
    with pytest.raises(ModelError, match="here states 'steps'; there are inference_step"):
        NS2Options().changed({"steps": 12}, "here")
