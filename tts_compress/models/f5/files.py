"""The files of an F5-TTS model, upstream's own or saved ones, and the settings they may hold."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tts_compress.errors import ModelError, first_line
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.f5.package import HOP_LENGTH, SAMPLE_RATE, official
from tts_compress.models.files import REFERENCE_TEXT, find_prompt, read_yaml
from tts_compress.models.options import Options
from tts_compress.models.torch_model import WEIGHTS

CONFIG = "config.yaml"
VOCABULARY = "vocab.txt"
VOCODER = "vocoder.yaml"

# Folders of releases that are not in the folder of the package's newest one.
_OLDER = {
    "F5TTS_Base": "hf://SWivid/F5-TTS/F5TTS_Base/model_1200000.safetensors",
    "E2TTS_Base": "hf://SWivid/E2-TTS/E2TTS_Base/model_1200000.safetensors",
}
_VOCOS = "hf://charactr/vocos-mel-24khz"

_BACKBONES = ("DiT", "MMDiT", "UNetT")
# Upstream's inference computes with these, whatever a configuration states.
_MEL_SPEC = {
    "target_sample_rate": SAMPLE_RATE,
    "n_mel_channels": 100,
    "hop_length": HOP_LENGTH,
    "win_length": 1024,
    "n_fft": 1024,
    "mel_spec_type": "vocos",
}
# Upstream would run whatever classes are named.
_VOCODER_CLASSES = {
    "feature_extractor": "vocos.feature_extractors.MelSpectrogramFeatures",
    "backbone": "vocos.models.VocosBackbone",
    "head": "vocos.heads.ISTFTHead",
}
_OPTIONS = "inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Options(Options):
    """Settings of inference, named as in `F5TTS.infer`; the defaults are the system's own."""

    # Outside these, time would run backwards or not at all.
    limits: ClassVar = {
        "nfe_step": (1, 1000),
        "cfg_strength": (0, 100),
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
    vocoder_weights: Path | None = None
    """None where the checkpoint holds them."""

    prompt: Prompt = field(default_factory=Prompt)
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
        if _OPTIONS not in self.settings:
            return F5Options()
        stated = _section(self.config, self.settings, _OPTIONS)
        return F5Options().changed(stated, f"'{self.config}'")

    def files(self) -> ModelFiles:
        """Return the checkpoint, the vocoder and what lies beside them."""
        weights = (self.checkpoint, self.vocoder_weights)
        found = self.config.with_name(REFERENCE_TEXT)
        text = found if found.is_file() else None
        settings = (self.config, self.vocabulary, self.vocoder_config, self.prompt.audio, text)
        return ModelFiles(
            weights=tuple(path for path in weights if path is not None),
            settings=tuple(path for path in settings if path is not None),
        )

    def write_config(self, path: Path, options: F5Options) -> None:
        """Write a `config.yaml` with the options that are not the system's defaults."""
        settings = {name: value for name, value in self.settings.items() if name != _OPTIONS}
        if stated := options.stated():
            settings[_OPTIONS] = stated
        import yaml

        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def find_source(place: str) -> F5Source:
    """Return the files in a directory, or of a release that the f5_tts package knows by name."""
    directory = Path(place)
    if not directory.is_dir() and (directory.exists() or len(directory.parts) != 1):
        raise ModelError(
            f"'{place}' is no directory; an F5-TTS model is a directory or a name such as "
            "'F5TTS_v1_Base'"
        )
    source = _in_directory(directory) if directory.is_dir() else _release(place)
    check_vocoder_config(source.vocoder_config)
    return source


def _in_directory(directory: Path) -> F5Source:
    """Return files laid out as upstream's are, or as a saved model's."""
    is_saved = (directory / VOCODER).is_file()
    folder = directory / "vocoder"
    config = _existing(directory, CONFIG)
    return F5Source(
        checkpoint=_existing(directory, WEIGHTS) if is_saved else _checkpoint(directory),
        config=config,
        settings=_read_config(config),
        vocabulary=_existing(directory, VOCABULARY),
        vocoder_config=_existing(directory, VOCODER) if is_saved else _existing(folder, CONFIG),
        vocoder_weights=None if is_saved else _existing(folder, WEIGHTS, "pytorch_model.bin"),
        prompt=find_prompt(directory),
    )


def _release(name: str) -> F5Source:
    """Return the files of a release, downloaded once; the prompt is the package's own example."""
    package = _package()
    known = sorted(path.stem for path in (package / "configs").glob("*.yaml"))
    if name not in known:
        raise ModelError(
            f"no F5-TTS model {name!r}; give a directory with its checkpoint, "
            f"or one of {', '.join(known)}"
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
        settings=_read_config(config),
        vocabulary=examples / VOCABULARY,
        vocoder_config=_download(f"{_VOCOS}/{CONFIG}", name),
        vocoder_weights=_download(f"{_VOCOS}/pytorch_model.bin", name),
        prompt=prompt,
    )


def _package() -> Path:
    """Return the folder that f5_tts is installed in.

    It is a namespace, which other projects' folders of that name may join.
    """
    for folder in map(Path, official("f5_tts").__path__):
        if (folder / "configs").is_dir():
            return folder
    raise ModuleNotFoundError("no such package", name="f5_tts")


def _download(url: str, name: str) -> Path:
    download = official("cached_path").cached_path
    try:
        return Path(download(url))
    # Hubs, proxies and file systems fail in ways of their own.
    except Exception as error:
        raise ModelError(
            f"cannot download {name!r} from '{url}': {first_line(error)}; "
            "give a directory with its files instead"
        ) from error


def _checkpoint(directory: Path) -> Path:
    found = sorted(p for p in directory.glob("*") if p.suffix in {".safetensors", ".pt"})
    if len(found) == 1:
        return found[0]
    holds = ", ".join(p.name for p in found) if found else "no *.safetensors or *.pt"
    raise ModelError(f"'{directory}' holds {holds}; one checkpoint is needed")


def _existing(directory: Path, *names: str) -> Path:
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise ModelError(
        f"'{directory}' holds no {' or '.join(names)}; an F5-TTS model is a "
        f"checkpoint, {VOCABULARY}, {CONFIG}, vocoder/{CONFIG} and vocoder/pytorch_model.bin"
    )


def _read_config(path: Path) -> dict[str, Any]:
    """Return a `config.yaml` as upstream ships one for each model."""
    settings: dict[str, Any] = read_yaml(path)
    model = _section(path, settings, "model")
    backbone = model.get("backbone")
    if backbone not in _BACKBONES:
        raise ModelError(
            f"'{path}': backbone is {backbone!r}; accepted are {', '.join(_BACKBONES)}"
        )
    _section(path, model, "arch")
    for name, value in _section(path, model, "mel_spec").items():
        if value != _MEL_SPEC.get(name, value):
            raise ModelError(
                f"'{path}': mel_spec.{name} is {value!r}; F5-TTS's inference takes "
                f"{_MEL_SPEC[name]!r} only"
            )
    return settings


def check_vocoder_config(path: Path) -> None:
    """Refuse a vocoder's configuration with other classes than those F5-TTS speaks with."""
    settings = read_yaml(path)
    for part, accepted in _VOCODER_CLASSES.items():
        stated = _section(path, settings, part).get("class_path")
        if stated != accepted:
            raise ModelError(
                f"'{path}': class_path of {part} is {stated!r}; only {accepted!r} is accepted"
            )


def _section(path: Path, settings: Any, name: str) -> dict[str, Any]:
    if not isinstance(settings, dict):
        raise ModelError(f"'{path}' holds a {type(settings).__name__}; sections by name are needed")
    section = settings.get(name)
    if not isinstance(section, dict):
        raise ModelError(f"'{path}' has no section {name!r}; take upstream's file of the model")
    return section
