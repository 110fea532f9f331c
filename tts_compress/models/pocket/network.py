"""The files of a Pocket-TTS model, here or on a hub, and the official object read from them."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import REFERENCE, check_finite, find_prompt, read_yaml
from tts_compress.models.options import Options
from tts_compress.models.pretrained import bounded_weights, find_folder
from tts_compress.models.torch_model import WEIGHTS, restore_weights
from tts_compress.torch.layers.integer import IntegerLayer

CONFIG = "config.yaml"
STATE = "voice.safetensors"
"""The file beside a model with a voice's stored state, as `pocket-tts export-voice` writes it."""

_FETCHED = ("*.yaml", "*.safetensors", "tokenizer*", REFERENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketOptions(Options):
    """Settings of inference; the defaults of a model stand in its configuration."""

    limits: ClassVar = {"temperature": (0, 2), "eos_threshold": (-100, 100)}

    temperature: float = 0.3
    """Variance of the noise from which a latent is made, 0 to 2."""

    eos_threshold: float = -4.0
    """Score of the end above which speech ends, -100 to 100."""


@dataclass(frozen=True, kw_only=True)
class PocketSource:
    """The configuration that a model is read by, and what lies beside it."""

    config: Path

    voice: str = ""
    """Name of one of the package's voices; empty for what lies beside the configuration."""

    @cached_property
    def settings(self) -> Any:
        """The official `Config`, checked; names of files are as they stand in it."""
        settings = read_yaml(self.config)
        with model_errors(f"'{self.config}' is no configuration of Pocket-TTS"):
            return official("utils.config").Config(**settings)

    @property
    def is_release(self) -> bool:
        """True if the configuration is one that the package brings."""
        return self.config.parent == releases()

    @property
    def options(self) -> PocketOptions:
        """Settings of inference, as the configuration states them."""
        return PocketOptions(
            temperature=self.settings.default_temperature,
            eos_threshold=self.settings.default_eos_threshold,
        )

    @property
    def prompt(self) -> Prompt:
        """The recording or the stored state beside the configuration, if there is one."""
        if self.is_release or self.voice:
            return Prompt()
        state = self.config.with_name(STATE)
        return Prompt(audio=state) if state.is_file() else find_prompt(self.config.parent)

    def tokenizer(self) -> Path:
        """Return the tokenizer's file, fetched where it is not here."""
        return self._fetch(self.settings.flow_lm.lookup_table.tokenizer_path)

    def weights(self) -> tuple[Path, ...]:
        """Return the files with the weights, fetched where they are not here."""
        stated, parts = self.settings, (self.settings.flow_lm, self.settings.mimi)
        names = [part.weights_path for part in parts if part.weights_path]
        if not stated.weights_path:
            paths = [self._fetch(name) for name in names]
        else:
            try:
                paths = [self._fetch(stated.weights_path), *map(self._fetch, names)]
            except ModelError:
                # As upstream does where nobody has agreed to the terms of cloning voices.
                if not stated.weights_path_without_voice_cloning:
                    raise
                paths = [self._fetch(stated.weights_path_without_voice_cloning)]
        if not paths:
            raise ModelError(f"'{self.config}' names no weights; add weights_path")
        return tuple(paths)

    def files(self) -> ModelFiles:
        """Return the model's files."""
        beside = (self.config.with_name(name) for name in (STATE, REFERENCE))
        recorded = () if self.is_release else (path for path in beside if path.is_file())
        return ModelFiles(
            weights=self.weights(), settings=(self.config, self.tokenizer(), *recorded)
        )

    def _fetch(self, name: str) -> Path:
        """Return the file of a name: a path from the configuration's folder, or one on a hub."""
        path = self.config.parent / name
        if "://" in name:
            with model_errors(f"cannot fetch '{name}'; give a folder with its files"):
                path = Path(official("utils.utils").download_if_necessary(name))
        if not path.is_file():
            raise ModelError(f"'{self.config}' names '{name}', which is not there; fetch it")
        return path


def find_source(location: str) -> PocketSource:
    """Return the files of a release, a folder, a configuration, or a name on the hub.

    Args:
        location: One of those; a comma and the name of one of the package's voices may follow.
    """
    where, comma, voice = location.rpartition(",")
    if not comma or Path(location).exists():
        where, voice = location, ""
    path = Path(where)
    if path.suffix not in {".yaml", ".yml"}:
        release = releases() / f"{where}.yaml"
        folder = None if "/" not in where and release.is_file() and not path.is_dir() else where
        path = release if folder is None else _folder(folder) / CONFIG
    if not path.is_file():
        raise ModelError(f"there is no '{path}'; give a folder with {CONFIG} and its weights")
    source = PocketSource(config=path, voice=voice)
    _ = source.settings  # refused here, where they are no settings
    voices = sorted(official("utils.utils")._ORIGINS_OF_PREDEFINED_VOICES)  # noqa: SLF001
    if voice and not (source.is_release and voice in voices):
        raise ModelError(
            f"{location!r} names the voice {voice!r}; accepted, of a release of the package, are "
            f"{', '.join(voices)}; elsewhere give a recording"
        )
    return source


def _folder(name: str) -> Path:
    names = ", ".join(sorted(path.stem for path in releases().glob("*.yaml")))
    if "/" not in name and not Path(name).is_dir():
        raise ModelError(f"no Pocket-TTS model {name!r}; give a folder, or one of {names}")
    return find_folder(name, "Pocket-TTS", "owner/name", _FETCHED, CONFIG)


def releases() -> Path:
    """Return the folder with the configurations that the package brings."""
    return Path(official("utils.config").CONFIGS_DIR)


def official(name: str) -> Any:
    """Return a module of the package, whose import would leave torch with one thread."""
    threads = torch.get_num_threads()
    try:
        return import_module(f"pocket_tts.{name}")
    finally:
        torch.set_num_threads(threads)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep remarks of the package and of torch out of our own output."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # no errors
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketNetworks:
    """A Pocket-TTS model in memory."""

    root: nn.Module
    """The official `TTSModel`."""

    def __post_init__(self) -> None:
        """Have integers decode latent by latent, by the official setting.

        By itself the codec takes as many latents at once as are waiting. One range for all of them
        would round the quiet ones by what the loud ones need, which is heard as hiss.
        """
        if any(isinstance(part, IntegerLayer) for part in self.root.modules()):
            vars(self.root)["max_decoder_frames_per_call"] = 1

    def with_root(self, root: nn.Module) -> "PocketNetworks":
        """Return another official object."""
        return PocketNetworks(root=root)


def load_networks(source: PocketSource, layers: Sequence[LayerRecord]) -> PocketNetworks:
    """Read an original, or an artifact whose weights are never larger than stored."""
    directory = source.config.parent
    if (directory / MANIFEST_NAME).is_file():
        root = restore_weights(build_skeleton(source), layers, directory / WEIGHTS)
        return PocketNetworks(root=root.eval())
    kind = official("models.tts_model").TTSModel
    with model_errors(f"'{source.config}' cannot be loaded"), quiet(), bounded_weights():
        if source.is_release:
            root = kind.load_model(language=source.config.stem)
        else:  # which names files from its own folder
            with chdir(directory):
                root = kind.load_model(config=source.config.name)
    check_finite(root.named_parameters(), source.config)
    return PocketNetworks(root=root.float().eval())


def build_skeleton(source: PocketSource) -> nn.Module:
    """Return the model that an artifact's settings describe, without memory."""
    settings = copy.deepcopy(source.settings)
    settings.flow_lm.lookup_table.tokenizer_path = str(source.tokenizer())
    problem = model_errors(f"'{source.config}' cannot be built")
    with problem, quiet(), bounded_weights(), torch.device("meta"):
        return build(settings)


def build(settings: Any) -> nn.Module:
    """Return the official `TTSModel` of an official `Config`, whose weights are drawn."""
    models = official("models.tts_model")
    options = (settings.default_temperature, 1, None, settings.default_eos_threshold)
    root: Any = models.TTSModel._from_pydantic_config(settings, *options, None)  # noqa: SLF001
    width = settings.mimi.inner_dim or settings.mimi.seanet.dimension
    shape = settings.flow_lm.transformer.d_model, width
    root.flow_lm.speaker_proj_weight = nn.Parameter(torch.zeros(shape))
    root.mimi = models.build_mimi(settings.mimi)
    models.stamp_state_names(root)
    built: nn.Module = root.eval()
    return built


def write_settings(source: PocketSource, options: PocketOptions, directory: Path) -> None:
    """Write the configuration and the tokenizer of a model whose files lie in one folder."""
    import yaml

    tokenizer = source.tokenizer()
    settings: Mapping[str, Any] = source.settings.model_dump(mode="json")
    flow_lm, mimi = dict(settings["flow_lm"]), dict(settings["mimi"])
    name = f"tokenizer{tokenizer.suffix}"
    flow_lm["lookup_table"] = flow_lm["lookup_table"] | {"tokenizer_path": name}
    written = dict(settings) | {
        "flow_lm": flow_lm | {"weights_path": None},
        "mimi": mimi | {"weights_path": None},
        "weights_path": WEIGHTS,
        "weights_path_without_voice_cloning": None,
        "default_temperature": options.temperature,
        "default_eos_threshold": options.eos_threshold,
    }
    (directory / CONFIG).write_text(yaml.safe_dump(written), encoding="utf-8")
    (directory / name).write_bytes(tokenizer.read_bytes())
