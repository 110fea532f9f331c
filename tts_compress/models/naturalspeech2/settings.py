"""What a NaturalSpeech2 model is built from: the part of Amphion's configuration that matters."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.naturalspeech2.config_file import parse
from tts_compress.models.naturalspeech2.options import NS2Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["SETTINGS", "NS2Settings", "check_settings", "read_settings"]

SETTINGS = "settings.json"
"""The file of a saved model that holds them."""

LATENT = 128
"""Values in a frame of EnCodec's latents."""

_LEXICON = "./text/lexicon/librispeech-lexicon.txt"

_COUNT = range(1, 65_537)
_LAYERS = range(1, 1_001)
_NUMBER = float
_ENCODER: dict[str, Any] = {
    "encoder_layer": _LAYERS,
    "encoder_hidden": _COUNT,
    "encoder_head": _COUNT,
    "conv_filter_size": _COUNT,
    "conv_kernel_size": _COUNT,
    "encoder_dropout": _NUMBER,
    "use_cln": bool,
}
_PREDICTOR: dict[str, Any] = {
    "input_size": _COUNT,
    "filter_size": _COUNT,
    "kernel_size": _COUNT,
    "conv_layers": _LAYERS,
    "cross_attn_per_layer": _LAYERS,
    "attn_head": _COUNT,
    "drop_out": _NUMBER,
}
_MODEL: dict[str, Any] = {
    "latent_dim": (LATENT,),
    "prior_encoder": {
        "vocab_size": _COUNT,
        "pitch_min": _NUMBER,
        "pitch_max": _NUMBER,
        "pitch_bins_num": _COUNT,
        "encoder": _ENCODER,
        "duration_predictor": _PREDICTOR,
        "pitch_predictor": _PREDICTOR,
    },
    "diffusion": {
        "wavenet": {
            "input_size": (LATENT,),
            "hidden_size": _COUNT,
            "out_size": (LATENT,),
            "num_layers": _LAYERS,
            "cross_attn_per_layer": _LAYERS,
            "dilation_cycle": range(1, 17),
            "attn_head": _COUNT,
            "drop_out": _NUMBER,
        },
        "beta_min": _NUMBER,
        "beta_max": _NUMBER,
        "sigma": _NUMBER,
        "noise_factor": _NUMBER,
        "ode_solver": ("euler", "midpoint"),
        "diffusion_type": ("diffusion", "flow"),
    },
    "prompt_encoder": _ENCODER,
    "query_emb": {"query_token_num": _COUNT, "hidden_size": _COUNT, "head_num": _COUNT},
}
"""What each value has to be: one of some, a number, or a truth value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Settings:
    """What upstream's classes are built from, and how they are run."""

    model: dict[str, Any]
    """The section `model`, checked."""

    lexicon: str = _LEXICON
    """The file of words and their phones, relative to the clone."""

    options: NS2Options = NS2Options()  # noqa: RUF009  frozen
    """How the solver is run, unless the model is named with other options."""

    def to_json(self) -> str:
        """Return what a saved model's file says; `read_settings` reads it."""
        stated = {
            "model": self.model,
            "lexicon": self.lexicon,
            "inference_step": self.options.inference_step,
        }
        return json.dumps(stated, indent=2, sort_keys=True) + "\n"


def check_settings(config: dict[str, Any], where: str) -> NS2Settings:
    """Return the settings that a configuration of Amphion's states.

    Args:
        config: With what it is built on.
        where: Its place, for errors.

    Raises:
        ModelError: A value is missing or wrong; all that are, are named.
    """
    model = config.get("model")
    if not isinstance(model, dict):
        raise ModelError(f"{where} has no section 'model'; give a configuration of NaturalSpeech2")
    preprocess = config.get("preprocess")
    lexicon = preprocess.get("lexicon_path", _LEXICON) if isinstance(preprocess, dict) else _LEXICON
    return _checked(model, lexicon, NS2Options(), where)


def read_settings(path: Path) -> NS2Settings:
    """Return the settings of a saved model.

    Raises:
        ModelError: The file cannot be read, or a value is missing or wrong.
    """
    try:
        stated = parse(path.read_text(encoding="utf-8"))
        model, lexicon = stated["model"], stated["lexicon"]
        options = NS2Options(inference_step=stated["inference_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read '{path}': {error!r}; compress the model again") from error
    return _checked(model, lexicon, options, f"'{path}'")


def _checked(model: Any, lexicon: Any, options: NS2Options, where: str) -> NS2Settings:
    problems = list(_problems(model, _MODEL, "model"))
    if not isinstance(lexicon, str) or "\0" in lexicon:
        problems.append(f"preprocess.lexicon_path is {lexicon!r}, not a file's path")
    if not problems and model["prompt_encoder"]["encoder_hidden"] == LATENT:
        # Upstream builds no projection then, and calls it all the same.
        problems.append(f"model.prompt_encoder.encoder_hidden is {LATENT}; upstream runs no such")
    if problems:
        raise ModelError(f"{where} describes no NaturalSpeech2: {'; '.join(problems)}")
    return NS2Settings(model=model, lexicon=lexicon, options=options)


def _problems(value: Any, wanted: Any, name: str) -> Iterator[str]:
    """Yield what is wrong with a value, or with what it holds."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            yield f"{name} is {value!r:.40}, not a section"
            return
        for key, inner in wanted.items():
            if key in value:
                yield from _problems(value[key], inner, f"{name}.{key}")
            else:
                yield f"{name}.{key} is missing"
    elif not _fits(value, wanted):
        yield f"{name} is {value!r:.40}, not {_expected(wanted)}"


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is bool:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if wanted is _NUMBER:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, int | str) and value in wanted


def _expected(wanted: Any) -> str:
    if wanted is bool:
        return "true or false"
    if wanted is _NUMBER:
        return "a number"
    if isinstance(wanted, range):
        return f"an integer from {wanted.start} to {wanted.stop - 1}"
    return " or ".join(repr(value) for value in wanted)
