"""The files of an F5-TTS model: upstream's own, or those of a saved artifact."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.errors import MissingExtraError, ModelError, first_line
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.f5.package import EXTRA, official
from tts_compress.models.recording import REFERENCE_TEXT, find_prompt
from tts_compress.models.saved import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tts_compress.models.f5.config import F5Config

__all__ = [
    "CONFIG",
    "VOCABULARY",
    "VOCODER",
    "F5Files",
    "F5Source",
    "download_release",
    "find_files",
]

CONFIG = "config.yaml"
VOCABULARY = "vocab.txt"
VOCODER = "vocoder.yaml"

# Where releases lie that are not where the package's newest one is.
_OLDER = {
    "F5TTS_Base": "hf://SWivid/F5-TTS/F5TTS_Base/model_1200000.safetensors",
    "E2TTS_Base": "hf://SWivid/E2-TTS/E2TTS_Base/model_1200000.safetensors",
}
_VOCOS = "hf://charactr/vocos-mel-24khz"


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Files:
    """Where the parts of a model are."""

    checkpoint: Path
    """The transformer's weights; those of a saved artifact hold the vocoder's too."""

    config: Path
    vocabulary: Path
    vocoder_config: Path
    vocoder_weights: Path | None = None
    """None where the checkpoint holds them."""

    prompt: Prompt = field(default_factory=Prompt)
    """The recording that lies beside them, if one does."""

    prompt_text: Path | None = None

    def model_files(self) -> ModelFiles:
        """Return the files by what they hold."""
        weights = (self.checkpoint, self.vocoder_weights)
        settings = (
            self.config,
            self.vocabulary,
            self.vocoder_config,
            self.prompt.audio,
            self.prompt_text,
        )
        return ModelFiles(
            weights=tuple(path for path in weights if path is not None),
            settings=tuple(path for path in settings if path is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Source:
    """A model's files, of which the settings are read."""

    paths: F5Files
    config: F5Config

    def files(self) -> ModelFiles:
        """Return the checkpoint, the vocoder and what lies beside them."""
        return self.paths.model_files()


def find_files(directory: Path) -> F5Files:
    """Return the files in a directory, as upstream lays them out or as an artifact's are.

    Raises:
        ModelError: One is missing, or there are several checkpoints.
    """
    is_flat = (directory / VOCODER).is_file()
    folder = directory / "vocoder"
    names = ("model.safetensors", "pytorch_model.bin")
    text = directory / REFERENCE_TEXT
    return F5Files(
        checkpoint=_existing(directory, [WEIGHTS]) if is_flat else _checkpoint(directory),
        config=_existing(directory, [CONFIG]),
        vocabulary=_existing(directory, [VOCABULARY]),
        vocoder_config=_existing(directory, [VOCODER]) if is_flat else _existing(folder, [CONFIG]),
        vocoder_weights=None if is_flat else _existing(folder, names),
        prompt=find_prompt(directory),
        prompt_text=text if text.is_file() else None,
    )


def download_release(name: str) -> F5Files:
    """Return the files of a model that the package knows by name, downloaded once.

    Its prompt is the package's own example.

    Raises:
        ModelError: The package knows no such model, or it cannot be downloaded.
        MissingExtraError: The package is not installed.
    """
    package = _package()
    config = package / "configs" / f"{name}.yaml"
    known = sorted(p.stem for p in (package / "configs").glob("*.yaml"))
    if name not in known:
        raise ModelError(
            f"no F5-TTS model {name!r}; give a directory with its checkpoint, "
            f"or one of {', '.join(known)}"
        )
    example = package / "infer" / "examples" / "basic" / "basic.toml"
    try:
        stated = tomllib.loads(example.read_text(encoding="utf-8"))
        prompt = Prompt(audio=package / stated["ref_audio"], text=stated["ref_text"])
    except (OSError, ValueError, KeyError, TypeError):
        prompt = Prompt()  # speaking will ask for one
    latest = f"hf://SWivid/F5-TTS/{name}/model_1250000.safetensors"
    return F5Files(
        checkpoint=_download(_OLDER.get(name, latest), name),
        config=config,
        vocabulary=package / "infer" / "examples" / VOCABULARY,
        vocoder_config=_download(f"{_VOCOS}/{CONFIG}", name),
        vocoder_weights=_download(f"{_VOCOS}/pytorch_model.bin", name),
        prompt=prompt,
    )


def _package() -> Path:
    """Return the folder that f5_tts is installed in.

    It is a namespace, which other projects' folders of that name may join.
    """
    folders = [Path(str(folder)) for folder in official("f5_tts").__path__]
    for folder in folders:
        if (folder / "configs").is_dir():
            return folder
    raise MissingExtraError("f5_tts", EXTRA)


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


def _existing(directory: Path, names: Iterable[str]) -> Path:
    paths = [directory / name for name in names]
    for path in paths:
        if path.is_file():
            return path
    raise ModelError(
        f"'{directory}' holds no {' or '.join(p.name for p in paths)}; an F5-TTS model is a "
        f"checkpoint, {VOCABULARY}, {CONFIG}, vocoder/{CONFIG} and vocoder/pytorch_model.bin"
    )
