"""The files of a NaturalSpeech2 model, Amphion's own or saved ones, and the settings in them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from tts_compress.errors import ModelError
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import read_json
from tts_compress.models.options import Options
from tts_compress.models.torch_model import WEIGHTS
from tts_compress.reading import read_text

SETTINGS = "settings.json"
"""The file of a saved model that holds them."""

_LEXICON = "./text/lexicon/librispeech-lexicon.txt"

_LARGEST = 1 << 17
"""Bytes of a configuration; upstream's own have some thousand."""

_DEEPEST = 8

_Count = Annotated[int, Field(ge=1, le=65_536)]
_Layers = Annotated[int, Field(ge=1, le=1_000)]


def _projected(width: int) -> int:
    if width == 128:
        raise ValueError("upstream runs no such")
    return width


class _Section(BaseModel):
    model_config = ConfigDict(strict=True)


class _Encoder(_Section):
    encoder_layer: _Layers
    encoder_hidden: _Count
    encoder_head: _Count
    conv_filter_size: _Count
    conv_kernel_size: _Count
    encoder_dropout: FiniteFloat
    use_cln: bool


class _Predictor(_Section):
    input_size: _Count
    filter_size: _Count
    kernel_size: _Count
    conv_layers: _Layers
    cross_attn_per_layer: _Layers
    attn_head: _Count
    drop_out: FiniteFloat


class _PromptEncoder(_Encoder):
    # Upstream builds no projection for 128, and calls it all the same.
    encoder_hidden: Annotated[_Count, AfterValidator(_projected)]


class _PriorEncoder(_Section):
    vocab_size: _Count
    pitch_min: FiniteFloat
    pitch_max: FiniteFloat
    pitch_bins_num: _Count
    encoder: _Encoder
    duration_predictor: _Predictor
    pitch_predictor: _Predictor


class _WaveNet(_Section):
    input_size: Literal[128]
    hidden_size: _Count
    out_size: Literal[128]
    num_layers: _Layers
    cross_attn_per_layer: _Layers
    dilation_cycle: Annotated[int, Field(ge=1, le=16)]
    attn_head: _Count
    drop_out: FiniteFloat


class _Diffusion(_Section):
    wavenet: _WaveNet
    beta_min: FiniteFloat
    beta_max: FiniteFloat
    sigma: FiniteFloat
    noise_factor: FiniteFloat
    ode_solver: Literal["euler", "midpoint"]
    diffusion_type: Literal["diffusion", "flow"]


class _Query(_Section):
    query_token_num: _Count
    hidden_size: _Count
    head_num: _Count


class _Model(_Section):
    """The section `model`; what upstream's inference does not read may be anything."""

    latent_dim: Literal[128]
    prior_encoder: _PriorEncoder
    diffusion: _Diffusion
    prompt_encoder: _PromptEncoder
    query_emb: _Query


REFERENCE = "reference"
"""The name, before its ending, of the recording to speak by."""

CODEC = "encodec_24khz-d7cc33bc.th"
"""EnCodec's weights, as its authors publish them."""

CODEC_VARIABLE = "TTS_COMPRESS_ENCODEC"
"""The environment variable that names them."""

_CHECKPOINTS = ("pytorch_model.bin", WEIGHTS)
"""Names of checkpoints by older and newer versions of Amphion's trainer."""

_CONFIGS = ("args.json", "exp_config.json")
_DEFAULT_CONFIG = "egs/tts/NaturalSpeech2/exp_config.json"
_FORMATS = (".wav", ".flac", ".ogg", ".mp3")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Source:
    """A model's files.

    Raises:
        ModelError: Raised by its methods: a file is missing, unreadable, or not what it should be.
    """

    directory: Path
    """A checkpoint's folder, or a saved model's."""

    @property
    def is_saved(self) -> bool:
        """True if `save` wrote the folder: the codec's weights are among the others then."""
        return (self.directory / SETTINGS).is_file()

    @property
    def options(self) -> NS2Options:
        """Options of the solver: a saved model's, or upstream's."""
        return read_settings(self.directory / SETTINGS).options if self.is_saved else NS2Options()

    @property
    def prompt(self) -> Prompt:
        """The recording beside the weights, if there is one."""
        paths = [self.directory / f"{REFERENCE}{suffix}" for suffix in _FORMATS]
        return Prompt(audio=next((path for path in paths if path.is_file()), None))

    def checkpoint(self) -> Path:
        """Return the file with the weights."""
        if not self.directory.is_dir():
            problem = "is no folder" if self.directory.exists() else "is not there"
            raise ModelError(f"'{self.directory}' {problem}; give the folder of a checkpoint")
        names = (WEIGHTS,) if self.is_saved else _CHECKPOINTS
        for name in names:
            if (self.directory / name).is_file():
                return self.directory / name
        inside = sorted(self.directory.glob(f"**/{_CHECKPOINTS[0]}"))[-1:]
        hint = f"; '{inside[0].parent}' does" if inside else ""
        raise ModelError(f"'{self.directory}' holds no {' or '.join(names)}{hint}")

    def config(self) -> Path | None:
        """Return the file with the settings; None where only the clone has one.

        Amphion keeps one for all checkpoints of an experiment, two folders above them.
        """
        if self.is_saved:
            return self.directory / SETTINGS
        folder = self.directory.resolve()
        for place in (folder, *folder.parents[:2]):
            for name in _CONFIGS:
                if (place / name).is_file():
                    return place / name
        return None

    def settings(self, clone: Path) -> NS2Settings:
        """Return the settings that the model is built from."""
        if self.is_saved:
            return read_settings(self.directory / SETTINGS)
        config = self.config() or clone / _DEFAULT_CONFIG
        return check_settings(read_config(config, clone), f"'{config}'")

    def codec(self) -> Path:
        """Return the file with EnCodec's weights; upstream would download it."""
        named = os.environ.get(CODEC_VARIABLE)
        if named:
            path = Path(named).expanduser()
            if not path.is_file():
                raise ModelError(f"{CODEC_VARIABLE} is {named!r}, which is no file; name {CODEC}")
            return path
        places = [self.directory / CODEC, Path(torch.hub.get_dir()) / "checkpoints" / CODEC]
        for path in places:
            if path.is_file():
                return path
        raise ModelError(
            f"EnCodec's weights are missing: there is no '{places[0]}' and no '{places[1]}'; fetch "
            f"https://dl.fbaipublicfiles.com/encodec/v0/{CODEC} into one of these folders, or name "
            f"the file by the environment variable {CODEC_VARIABLE}"
        )

    def files(self) -> ModelFiles:
        """Return the model's files."""
        weights = (self.checkpoint(),) if self.is_saved else (self.checkpoint(), self.codec())
        settings = (self.config(), self.prompt.audio)
        return ModelFiles(weights=weights, settings=tuple(p for p in settings if p is not None))


def find_source(place: str) -> NS2Source:
    """Return the files in the folder of a checkpoint or of a saved model."""
    source = NS2Source(directory=Path(place))
    source.checkpoint()
    return source


def read_config(path: Path, clone: Path, depth: int = 0) -> dict[str, Any]:
    """Return a configuration of Amphion's, which is built on another one and has comments."""
    import json5

    try:
        config = json5.loads(read_text(path, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:  # a decoding error is a ValueError, too
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


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with some values exchanged, section by section."""
    merged = base | changes
    for name in base.keys() & changes.keys():
        if isinstance(base[name], dict) and isinstance(changes[name], dict):
            merged[name] = merge(base[name], changes[name])
    return merged


def check_settings(
    config: dict[str, Any], where: str, options: NS2Options = NS2Options()
) -> NS2Settings:
    """Return the settings that a configuration of Amphion's states.

    Args:
        config: With what it is built on.
        where: Its place, for errors.
        options: Options of the solver, which it does not state.

    Raises:
        ModelError: A value is missing or wrong; all that are, are named.
    """
    model, preprocess = config.get("model"), config.get("preprocess")
    if not isinstance(model, dict):
        raise ModelError(f"{where} has no section 'model'; give a configuration of NaturalSpeech2")
    lexicon = preprocess.get("lexicon_path", _LEXICON) if isinstance(preprocess, dict) else _LEXICON
    problems = []
    try:
        _Model.model_validate(model)
    except ValidationError as error:
        for found in error.errors():
            name = ".".join(map(str, ("model", *found["loc"])))
            missing = found["type"] == "missing"
            value = "is missing" if missing else f"is {found['input']!r:.40}: {found['msg']}"
            problems.append(f"{name} {value}")
    if not isinstance(lexicon, str) or "\0" in lexicon:
        problems.append(f"preprocess.lexicon_path is {lexicon!r}, not a file's path")
    if problems:
        raise ModelError(f"{where} describes no NaturalSpeech2: {'; '.join(problems)}")
    return NS2Settings(model=model, lexicon=lexicon, options=options)


def read_settings(path: Path) -> NS2Settings:
    """Return the settings of a saved model."""
    stated = read_json(path)
    try:
        config = {"model": stated["model"], "preprocess": {"lexicon_path": stated["lexicon"]}}
        options = NS2Options(inference_step=stated["inference_step"])
    except (KeyError, TypeError) as error:
        raise ModelError(f"cannot read '{path}': {error!r}; compress the model again") from error
    return check_settings(config, f"'{path}'", options)
