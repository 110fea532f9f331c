"""Settings that a NaturalSpeech2 model is built from, and its inference options."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tts_compress.errors import ModelError
from tts_compress.models.files import read_json
from tts_compress.models.options import Options

SETTINGS = "settings.json"
"""The file of a saved model that holds them."""

LATENT = 128
"""Values in a frame of EnCodec's latents."""

_LEXICON = "./text/lexicon/librispeech-lexicon.txt"

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_LARGEST = 1 << 20
"""Characters of a configuration; upstream's own have some thousand."""

_DEEPEST = 8

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
"""Accepted values of each setting: one of several, a number, or a boolean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Options(Options):
    """Settings of inference, named as upstream's script names them; the default is its own."""

    limits: ClassVar = {"inference_step": (1, 10_000)}

    inference_step: int = 200
    """Steps of the solver, 1 to 10 000; each runs the estimator once, or twice by `midpoint`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Settings:
    """Settings that upstream's classes are built from, and the inference options."""

    model: dict[str, Any]
    """The section `model`, checked."""

    lexicon: str = _LEXICON
    """The file of words and their phones, relative to the clone."""

    options: NS2Options = NS2Options()
    """Options of the solver, unless the model is named with others."""

    def to_json(self) -> str:
        """Return the content of a saved model's settings file; `read_settings` reads it."""
        stated = {
            "model": self.model,
            "lexicon": self.lexicon,
            "inference_step": self.options.inference_step,
        }
        return json.dumps(stated, indent=2, sort_keys=True) + "\n"


def read_config(path: Path, clone: Path, depth: int = 0) -> dict[str, Any]:
    """Return a configuration of Amphion's, which is built on another one and has comments.

    Upstream's own reader takes seconds for one, and opens whatever its `base_config` is.
    """
    try:
        config = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # a decoding error is a ValueError, too
        raise ModelError(f"cannot read '{path}': {error}; give Amphion's JSON file") from error
    if not isinstance(config, dict):
        raise ModelError(f"'{path}' holds a {type(config).__name__}; sections by name are needed")
    base = config.get("base_config")
    if base is None:
        return config
    if not isinstance(base, str) or depth == _DEEPEST:
        raise ModelError(
            f"'{path}': base_config is {base!r}; it names another file, and at most {_DEEPEST} "
            "are built on each other"
        )
    return merge(read_config(clone / base, clone, depth + 1), config)


def parse(text: str) -> Any:
    """Return the value of JSON that may have comments and commas after the last item."""
    if len(text) > _LARGEST:
        raise ValueError(f"it has {len(text)} characters; a configuration has fewer")
    # Strings stay; the rest of a match is a comment, or a comma too many.
    plain = _COMMENT.sub(lambda match: match[1] or " ", text)
    try:
        return json.loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", plain))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with some values exchanged, section by section."""
    merged = base | changes
    for name in base.keys() & changes.keys():
        if isinstance(base[name], dict) and isinstance(changes[name], dict):
            merged[name] = merge(base[name], changes[name])
    return merged


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
    """Return the settings of a saved model."""
    stated = read_json(path)
    try:
        model, lexicon = stated["model"], stated["lexicon"]
        options = NS2Options(inference_step=stated["inference_step"])
    except (KeyError, TypeError) as error:
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
