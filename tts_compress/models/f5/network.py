"""The files of an F5-TTS model, upstream's or saved ones, and the official object built of them."""

import copy
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ValidationError
from torch import nn

from tts_compress.artifact import LayerRecord
from tts_compress.config import describe_problems, table_model
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import (
    REFERENCE_TEXT,
    check_finite,
    find_prompt,
    read_tensors,
    read_yaml,
)
from tts_compress.models.options import Options
from tts_compress.models.pretrained import quiet
from tts_compress.models.stand_ins import offer_f5_trainer, offer_torchaudio
from tts_compress.models.torch_model import WEIGHTS, restore_weights
from tts_compress.torch.devices import device_of

SAMPLE_RATE: Final = 24_000
"""Sample rate of every F5-TTS model, Hz."""

HOP_LENGTH: Final = 256
"""Samples per frame of its mel spectrograms."""

CONFIG = "config.yaml"
VOCABULARY = "vocab.txt"
VOCODER = "vocoder.yaml"

# Folders of releases that are not in the folder of the package's newest one.
_OLDER = {
    "F5TTS_Base": "hf://SWivid/F5-TTS/F5TTS_Base/model_1200000.safetensors",
    "E2TTS_Base": "hf://SWivid/E2-TTS/E2TTS_Base/model_1200000.safetensors",
}
_VOCOS = "hf://charactr/vocos-mel-24khz"
_OPTIONS = "inference"


_MEL_SPEC: dict[str, Any] = {
    "target_sample_rate": SAMPLE_RATE,
    "n_mel_channels": 100,
    "hop_length": HOP_LENGTH,
    "win_length": 1024,
    "n_fft": 1024,
    "mel_spec_type": "vocos",
}
"""The spectrograms that upstream's inference computes; a configuration may state no others."""

_CONFIG = table_model(
    "config",
    {
        "model": {
            "backbone": Literal["DiT", "MMDiT", "UNetT"],
            "arch": dict[str, Any],
            "mel_spec": {name: (Literal[value], value) for name, value in _MEL_SPEC.items()},
        },
        "inference": (dict[str, Any], {}),
    },
)
"""A `config.yaml` as upstream ships one for each model; a saved one may state options."""

_VOCODER = table_model(
    "vocoder",
    {
        "feature_extractor": {
            "class_path": Literal["vocos.feature_extractors.MelSpectrogramFeatures"]
        },
        "backbone": {"class_path": Literal["vocos.models.VocosBackbone"]},
        "head": {"class_path": Literal["vocos.heads.ISTFTHead"]},
    },
)
"""A vocoder's configuration; upstream would run whatever classes it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Options(Options):
    """Settings of inference, named as in `F5TTS.infer`; the defaults are the system's own."""

    # Outside these, time would run backwards or not at all.
    limits: ClassVar = {
        "nfe_step": (1, 1000),
        "cfg_strength": (0.0, 100.0),
        "sway_sampling_coef": (-1, 1.75),
        "speed": (0.1, 10),
    }

    nfe_step: int = 32
    """Steps of the solver, 1 to 1000; each runs the transformer once."""

    cfg_strength: float = 2.0
    """Strength of classifier-free guidance, 0 to 100; 0 halves the work."""

    sway_sampling_coef: float = -1.0
    """Sway sampling coefficient, -1 to 1.75: below 0, more of the solver's steps are early."""

    speed: float = 1.0
    """Speed of speech, 0.1 to 10 times the recording's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Source:
    """The files that a model is read from."""

    checkpoint: Path
    """The transformer's weights; those of a saved model hold the vocoder's too."""

    config: Path
    settings: dict[str, Any]
    """Everything in `config`, checked."""

    vocabulary: Path
    vocoder_config: Path
    vocoder_weights: Path | None
    """None where the checkpoint holds them."""

    prompt: Prompt
    """The recording beside them, if there is one."""

    @property
    def backbone(self) -> str:
        """Class of the transformer: `DiT`, `MMDiT` or `UNetT`."""
        return str(self.settings["model"]["backbone"])

    @property
    def arch(self) -> dict[str, Any]:
        """Constructor arguments of the transformer."""
        return dict(self.settings["model"]["arch"])

    @property
    def options(self) -> F5Options:
        """Inference options; the system's defaults unless a saved model states others."""
        return F5Options().changed(self.settings.get(_OPTIONS, {}), f"'{self.config}'")

    def files(self) -> ModelFiles:
        """Return the checkpoint, the vocoder and what lies beside them."""
        weights = (self.checkpoint, self.vocoder_weights)
        settings = (self.config, self.vocabulary, self.vocoder_config)
        recording = (self.prompt.audio, self.config.with_name(REFERENCE_TEXT))
        return ModelFiles(
            weights=tuple(path for path in weights if path is not None),
            settings=(*settings, *(path for path in recording if path and path.is_file())),
        )

    def write_config(self, path: Path, options: F5Options) -> None:
        """Write a `config.yaml` with the options that are not the system's defaults."""
        import yaml

        settings = {name: value for name, value in self.settings.items() if name != _OPTIONS}
        if stated := options.stated():
            settings[_OPTIONS] = stated
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def find_source(location: str) -> F5Source:
    """Return the files in a directory, or of a release that the f5_tts package knows by name."""
    directory = Path(location)
    if not directory.is_dir() and (directory.exists() or len(directory.parts) != 1):
        raise ModelError(
            f"'{location}' is no directory; an F5-TTS model is a directory or a name such as "
            "'F5TTS_v1_Base'"
        )
    source = _in_directory(directory) if directory.is_dir() else _release(location)
    _read_config(source.vocoder_config, _VOCODER)
    return source


def _in_directory(directory: Path) -> F5Source:
    """Return files laid out as upstream's are, or as a saved model's."""
    is_saved = (directory / VOCODER).is_file()
    folder = directory / "vocoder"
    config = _existing(directory, CONFIG)
    return F5Source(
        checkpoint=_existing(directory, WEIGHTS) if is_saved else _checkpoint(directory),
        config=config,
        settings=_read_config(config, _CONFIG),
        vocabulary=_existing(directory, VOCABULARY),
        vocoder_config=_existing(directory, VOCODER) if is_saved else _existing(folder, CONFIG),
        vocoder_weights=None if is_saved else _existing(folder, WEIGHTS, "pytorch_model.bin"),
        prompt=find_prompt(directory),
    )


def _release(name: str) -> F5Source:
    """Return the files of a release, downloaded once; the prompt is the package's own example."""
    package = _package()
    releases = sorted(path.stem for path in (package / "configs").glob("*.yaml"))
    if name not in releases:
        raise ModelError(
            f"no F5-TTS model {name!r}; give a directory with its checkpoint, "
            f"or one of {', '.join(releases)}"
        )
    examples = package / "infer" / "examples"
    try:
        stated = tomllib.loads((examples / "basic" / "basic.toml").read_text(encoding="utf-8"))
        prompt = Prompt(audio=package / stated["ref_audio"], text=stated["ref_text"])
    except (OSError, ValueError, KeyError, TypeError):
        prompt = Prompt()  # speaking will ask for one
    config = package / "configs" / f"{name}.yaml"
    latest = f"hf://SWivid/F5-TTS/{name}/model_1250000.safetensors"
    return F5Source(
        checkpoint=_download(_OLDER.get(name, latest), name),
        config=config,
        settings=_read_config(config, _CONFIG),
        vocabulary=examples / VOCABULARY,
        vocoder_config=_download(f"{_VOCOS}/{CONFIG}", name),
        vocoder_weights=_download(f"{_VOCOS}/pytorch_model.bin", name),
        prompt=prompt,
    )


def _package() -> Path:
    """Return the folder that f5_tts is installed in.

    It is a namespace, which other projects' folders of that name may join.
    """
    import f5_tts

    for folder in map(Path, f5_tts.__path__):
        if (folder / "configs").is_dir():
            return folder
    raise ModuleNotFoundError("no such package", name="f5_tts")


def _download(url: str, name: str) -> Path:
    from cached_path import cached_path

    # Hubs, proxies and file systems fail in ways of their own.
    with model_errors(f"cannot download {name!r} from '{url}'; give a directory with its files"):
        return Path(cached_path(url))


def _checkpoint(directory: Path) -> Path:
    files = sorted(p for p in directory.glob("*") if p.suffix in {".safetensors", ".pt"})
    if len(files) == 1:
        return files[0]
    holds = ", ".join(p.name for p in files) if files else "no *.safetensors or *.pt"
    raise ModelError(f"'{directory}' holds {holds}; one checkpoint is needed")


def _existing(directory: Path, *names: str) -> Path:
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise ModelError(
        f"'{directory}' holds no {' or '.join(names)}; an F5-TTS model is a "
        f"checkpoint, {VOCABULARY}, {CONFIG}, vocoder/{CONFIG} and vocoder/pytorch_model.bin"
    )


def _read_config(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    """Return the content of a configuration, which nothing has to trust."""
    settings: dict[str, Any] = read_yaml(path)
    try:
        schema.model_validate(settings)
    except ValidationError as error:
        problems = describe_problems(error)
        raise ModelError(f"'{path}': {problems}; take upstream's file of the model") from error
    return settings


_METHOD = "euler"


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Networks:
    """An F5-TTS model in memory."""

    api: Any
    """The official `f5_tts.api.F5TTS`."""

    @property
    def root(self) -> nn.Module:
        """A module with the object's transformer and vocoder as children, the live ones."""
        self.forget_text()
        parts = {"transformer": self.api.ema_model.transformer, "vocoder": self.api.vocoder}
        return nn.ModuleDict(parts).eval()

    def with_root(self, root: nn.Module) -> "F5Networks":
        """Return an official object with other modules; what else it holds is shared."""
        network = copy.copy(self.api.ema_model)
        # A shallow copy of a module shares the dictionary that its children are in.
        network.__dict__["_modules"] = dict(network._modules)  # noqa: SLF001
        network.transformer = root.get_submodule("transformer")
        api = copy.copy(self.api)
        api.ema_model = network
        api.vocoder = root.get_submodule("vocoder")
        api.device = str(device_of(root))
        return F5Networks(api=api)

    def forget_text(self) -> None:
        """Drop the text that the transformer keeps per thread, in a form that cannot be copied."""
        self.api.ema_model.transformer.__dict__.pop("_cache_local", None)


def official(name: str) -> Any:
    """Return a module of the official package, such as `f5_tts.api`, or of `vocos`."""
    offer_torchaudio()
    offer_f5_trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about programs for other audio formats
        return import_module(name)


def load_networks(source: F5Source, layers: Sequence[LayerRecord]) -> F5Networks:
    """Read upstream's own files, or a saved model whose weights are never larger than stored."""
    weights = source.vocoder_weights
    if weights is None:
        with _reading(source.config):
            networks = _build(source)
        return networks.with_root(restore_weights(networks.root, layers, source.checkpoint))
    with _reading(source.checkpoint):
        network = official("f5_tts.infer.utils_infer").load_model(
            getattr(official("f5_tts.model"), source.backbone),
            source.arch,
            str(source.checkpoint),
            mel_spec_type="vocos",
            vocab_file=str(source.vocabulary),
            ode_method=_METHOD,
            use_ema=True,
            device="cpu",
        )
    with _reading(weights):
        vocoder = official("vocos").Vocos.from_hparams(str(source.vocoder_config))
        vocoder.load_state_dict(read_tensors(weights))
    for path, module in ((source.checkpoint, network), (weights, vocoder)):
        check_finite(module.named_parameters(), path)
    return _assemble(network.float(), vocoder.float())


def _build(source: F5Source) -> F5Networks:
    """Build the networks as upstream's loaders do, with parameters that take no memory.

    Tensors that upstream computes from the settings (rotations, windows, filters) are real.
    """
    from accelerate import init_empty_weights

    tokenizer = official("f5_tts.model.utils").get_tokenizer
    vocabulary, size = tokenizer(str(source.vocabulary), "custom")
    model = official("f5_tts.model")
    with init_empty_weights(include_buffers=False):
        transformer = getattr(model, source.backbone)(
            **source.arch, text_num_embeds=size, mel_dim=_MEL_SPEC["n_mel_channels"]
        )
        vocoder = official("vocos").Vocos.from_hparams(str(source.vocoder_config))
    network = model.CFM(
        transformer=transformer,
        mel_spec_kwargs=dict(_MEL_SPEC),
        odeint_kwargs={"method": _METHOD},
        vocab_char_map=vocabulary,
    )
    return _assemble(network, vocoder)


def _assemble(network: Any, vocoder: Any) -> F5Networks:
    """Return an `F5TTS` object made of loaded networks.

    Its own constructor loads upstream's releases only.
    """
    kind = official("f5_tts.api").F5TTS
    api = kind.__new__(kind)
    api.ema_model = network.eval()
    api.vocoder = vocoder.eval()
    api.mel_spec_type = "vocos"
    api.target_sample_rate = SAMPLE_RATE
    api.ode_method = _METHOD
    api.use_ema = True
    api.device = "cpu"
    return F5Networks(api=api)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Call code that was written for its authors' own files."""
    with model_errors(f"'{path}' cannot be loaded with the files beside it"), quiet():
        yield
