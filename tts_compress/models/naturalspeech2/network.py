"""The files of a NaturalSpeech2 model, Amphion's or saved ones, and the official object of them."""

import argparse
import copy
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field, FiniteFloat, ValidationError
from torch import Tensor, nn

from tts_compress.artifact import LayerRecord
from tts_compress.config import table_model
from tts_compress.errors import ModelError, model_errors, raising
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.checkout import find_checkout
from tts_compress.models.files import check_finite, read_json, read_tensors
from tts_compress.models.naturalspeech2 import AMPHION
from tts_compress.models.options import Options
from tts_compress.models.stand_ins import offer_torchaudio
from tts_compress.models.torch_model import WEIGHTS, Table, restore_weights
from tts_compress.reading import read_text
from tts_compress.torch.layers.module_surgery import intercepted

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


_ENCODER = {
    "encoder_layer": _Layers,
    "encoder_hidden": _Count,
    "encoder_head": _Count,
    "conv_filter_size": _Count,
    "conv_kernel_size": _Count,
    "encoder_dropout": FiniteFloat,
    "use_cln": bool,
}

_PREDICTOR = {
    "input_size": _Count,
    "filter_size": _Count,
    "kernel_size": _Count,
    "conv_layers": _Layers,
    "cross_attn_per_layer": _Layers,
    "attn_head": _Count,
    "drop_out": FiniteFloat,
}

_WAVENET = {
    "input_size": Literal[128],
    "hidden_size": _Count,
    "out_size": Literal[128],
    "num_layers": _Layers,
    "cross_attn_per_layer": _Layers,
    "dilation_cycle": Annotated[int, Field(ge=1, le=16)],
    "attn_head": _Count,
    "drop_out": FiniteFloat,
}

_MODEL = table_model(
    "model",
    {
        "latent_dim": Literal[128],
        "prior_encoder": {
            "vocab_size": _Count,
            "pitch_min": FiniteFloat,
            "pitch_max": FiniteFloat,
            "pitch_bins_num": _Count,
            "encoder": _ENCODER,
            "duration_predictor": _PREDICTOR,
            "pitch_predictor": _PREDICTOR,
        },
        "diffusion": {
            "wavenet": _WAVENET,
            "beta_min": FiniteFloat,
            "beta_max": FiniteFloat,
            "sigma": FiniteFloat,
            "noise_factor": FiniteFloat,
            "ode_solver": Literal["euler", "midpoint"],
            "diffusion_type": Literal["diffusion", "flow"],
        },
        # Upstream builds no projection for 128, and calls it all the same.
        "prompt_encoder": _ENCODER
        | {"encoder_hidden": Annotated[_Count, AfterValidator(_projected)]},
        "query_emb": {"query_token_num": _Count, "hidden_size": _Count, "head_num": _Count},
    },
    strict=True,
)
"""The section `model`; what upstream's inference does not read may be anything."""

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
    """A model's files."""

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
        for parent in (folder, *folder.parents[:2]):
            for name in _CONFIGS:
                if (parent / name).is_file():
                    return parent / name
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


def find_source(location: str) -> NS2Source:
    """Return the files in the folder of a checkpoint or of a saved model."""
    source = NS2Source(directory=Path(location))
    source.checkpoint()
    return source


def read_config(path: Path, clone: Path, depth: int = 0) -> dict[str, Any]:
    """Return a configuration of Amphion's, which is built on another one and has comments."""
    import json5

    causes = OSError, ValueError, RecursionError  # a decoding error is a ValueError, too
    with raising(ModelError, f"cannot read '{path}'", *causes, advice="give Amphion's JSON file"):
        config = json5.loads(read_text(path, _LARGEST))
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
    """Return the settings that a configuration of Amphion's states."""
    model, preprocess = config.get("model"), config.get("preprocess")
    if not isinstance(model, dict):
        raise ModelError(f"{where} has no section 'model'; give a configuration of NaturalSpeech2")
    lexicon = preprocess.get("lexicon_path", _LEXICON) if isinstance(preprocess, dict) else _LEXICON
    problems = []
    try:
        _MODEL.model_validate(model)
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(map(str, ("model", *problem["loc"])))
            missing = problem["type"] == "missing"
            value = "is missing" if missing else f"is {problem['input']!r:.40}: {problem['msg']}"
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


_CODEC = "codec"
_SUMS = ("embed_avg", "cluster_size")
"""Running sums from which training makes a codec's tables; as large as these."""


class Amphion:
    """The clone, and the modules of upstream's inference, imported from it."""

    def __init__(self) -> None:
        checkout = find_checkout(AMPHION)
        offer_torchaudio()
        from encodec import EncodecModel

        self.clone, self.running = checkout.root, checkout.running
        self.encodec: Any = EncodecModel
        self.inference: Any = checkout.load("models.tts.naturalspeech2.ns2_inference")
        self.network: Any = checkout.load("models.tts.naturalspeech2.ns2")
        self.util: Any = checkout.load("utils.util")


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Networks:
    """A NaturalSpeech2 model in memory."""

    amphion: Amphion
    settings: NS2Settings

    inference: Any
    """The official `NS2Inference`."""

    @property
    def root(self) -> nn.Module:
        """A module with the parts of the model, and the codec, as children: the live ones."""
        children = self.inference.model.named_children()
        parts = {name: part for name, part in children if part is not None}
        return nn.ModuleDict(parts | {_CODEC: self.inference.codec}).eval()

    def with_root(self, root: nn.Module) -> "NS2Networks":
        """Return an official object with other modules; what else it holds is shared."""
        parts = dict(root.named_children())
        model = copy.copy(self.inference.model)
        # A shallow copy of a module shares the dictionary that its children are in.
        model.__dict__["_modules"] = {name: parts.get(name) for name in model._modules}  # noqa: SLF001
        inference = copy.copy(self.inference)
        inference.model = model.eval()
        inference.codec = parts[_CODEC]
        return replace(self, inference=inference)


def load_networks(source: NS2Source, layers: Sequence[LayerRecord]) -> NS2Networks:
    """Read a checkpoint and EnCodec's weights in FP32, or a saved model as it is stored.

    Upstream's own script leaves dropout on, so that its output differs with every run; here all
    modules are in `eval` mode. No weight of a saved model is ever larger than stored.
    """
    amphion = Amphion()
    settings = source.settings(amphion.clone)
    if source.is_saved:
        return _restore(_build(amphion, settings, source), source.checkpoint(), layers)
    codec_file = source.codec()  # first: the larger file is not read in vain
    networks = _build(amphion, settings, source)
    model, codec = networks.inference.model, networks.inference.codec
    fill(model, source.checkpoint())
    fill(codec, codec_file)
    others = codec.quantizer.state_dict()
    if all(tensor.equal(others[name]) for name, tensor in model.quantizer.state_dict().items()):
        codec.quantizer = model.quantizer  # which only a broken training changes
    return networks


def fill(module: nn.Module, path: Path) -> None:
    """Give a module, which may be without memory (`meta`), the tensors of a file, in FP32."""
    tensors = read_tensors(path)
    check_finite(tensors.items(), path)
    wanted = module.state_dict()
    with raising(ModelError, f"'{path}' does not fit its settings", RuntimeError, TypeError):
        for name, tensor in tensors.items():
            if name in wanted and tensor.is_floating_point() != wanted[name].is_floating_point():
                raise TypeError(f"{name!r} is of type {tensor.dtype}")
        full = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
        module.load_state_dict(full, assign=True)


def find_tables(root: nn.Module) -> Iterator[Table]:
    """Yield what is computed from the settings, or read in training only; equal ones share memory.

    Tables of positions that are not what upstream computes stay in a file.
    """
    positions: dict[tuple[int, int], Tensor] = {}
    for path, module in root.named_modules():
        kind: Any = type(module)
        if kind.__name__ == "EuclideanCodebook":
            for name in _SUMS:
                # An expanded tensor of any size takes the memory of one number.
                zeros = torch.zeros(1).expand(module.get_buffer(name).shape)
                yield Table(path=path, module=module, name=name, computed=zeros, is_used=False)
        elif kind.__name__ == "PositionalEncoding":
            length, _, width = module.get_buffer("pe").shape
            if (length, width) not in positions:
                positions[length, width] = kind(width, 0.0, length).pe
            yield Table(path=path, module=module, name="pe", computed=positions[length, width])


def _restore(networks: NS2Networks, path: Path, layers: Sequence[LayerRecord]) -> NS2Networks:
    from tts_compress.torch.layers.checkpoint import TensorFile

    inference = networks.inference
    if not any(name.startswith(f"{_CODEC}.quantizer.") for name in TensorFile(path).names):
        inference.codec.quantizer = inference.model.quantizer
    return networks.with_root(restore_weights(networks.root, layers, path, find_tables))


def _build(amphion: Amphion, settings: NS2Settings, source: NS2Source) -> NS2Networks:
    """Return networks made by upstream's constructor, with tensors that take no memory."""
    config = amphion.util.JsonHParams(
        model=settings.model, preprocess={"lexicon_path": settings.lexicon}
    )
    encodec = amphion.encodec
    # The codec's weights come with the checkpoint; upstream would download them.
    untrained = intercepted(encodec, "encodec_model_24khz", lambda make: make(pretrained=False))
    errors = model_errors(f"'{source.directory}' cannot be built")
    with errors, amphion.running(), untrained, torch.device("meta"):
        model = amphion.network.NaturalSpeech2(config.model)
        codec = encodec.encodec_model_24khz()
    codec.set_target_bandwidth(12.0)  # kbit/s, as upstream's own
    loaders = {"build_model": lambda _: model.eval(), "build_codec": lambda _: codec.eval()}
    kind = type("NS2Inference", (amphion.inference.NS2Inference,), loaders)
    inference = kind(argparse.Namespace(device="cpu"), config)
    return NS2Networks(amphion=amphion, settings=settings, inference=inference)
