"""Sources of a Parler-TTS model: a folder in the official format, or a model hub."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tts_compress.artifact import MANIFEST_NAME
from tts_compress.errors import ModelError, first_line
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import read_json
from tts_compress.models.parler.speech import ParlerOptions
from tts_compress.models.torch_model import WEIGHTS

CONFIG = "config.json"
GENERATION = "generation_config.json"
DESCRIPTION = "description.txt"

_INDEX = f"{WEIGHTS}.index.json"
_FETCHED = ["*.json", "*.model", "*.safetensors", "merges.txt", "vocab.txt", DESCRIPTION]


@dataclass(frozen=True, kw_only=True)  # no slots: the folder is found once
class ParlerSource:
    """A model's files, fetched or not.

    Raises:
        ModelError: Raised by its methods: a file is missing, unreadable, or not what it should be.
    """

    location: str
    """A folder, or a hub's `owner/name`."""

    options = ParlerOptions()
    prompt = Prompt()

    @property
    def is_artifact(self) -> bool:
        """True if the folder holds a compressed model."""
        return (Path(self.location) / MANIFEST_NAME).is_file()

    def check(self) -> None:
        """Refuse a folder that is not one of a model; a hub is not asked."""
        if Path(self.location).is_dir():
            self.weights()
            self.read_config()
            self._existing(GENERATION)
        elif not _is_hub_name(self.location):
            raise ModelError(
                f"no Parler-TTS model at '{self.location}'; give a folder with {CONFIG} and "
                f"{WEIGHTS}, or a name on the hub such as 'parler-tts/parler-tts-mini-v1'"
            )

    @cached_property
    def directory(self) -> Path:
        """The folder; what is on the hub is fetched as far as it is not here or changed."""
        path = Path(self.location)
        return path if path.is_dir() else _download(self.location)

    def read_config(self) -> dict[str, Any]:
        """Return the content of `config.json`, checked."""
        path = self._existing(CONFIG)
        config: dict[str, Any] = read_json(path)
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind != "parler_tts":
            raise ModelError(
                f"'{path}' is of a model of type {kind!r}, not 'parler_tts'; give another folder"
            )
        parts = ("audio_encoder", "decoder", "text_encoder")
        lacking = [part for part in parts if not isinstance(config.get(part), dict)]
        if lacking:
            raise ModelError(f"'{path}' says nothing about {', '.join(lacking)}; fetch it again")
        return config

    def description(self) -> str | None:
        """Return the folder's own description of the voice, if it has one."""
        path = self.directory / DESCRIPTION
        if not path.is_file():
            return None
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read '{path}': {error}") from error
        if not text:
            raise ModelError(f"'{path}' is empty; describe the voice in it, or remove it")
        return text

    def weights(self) -> tuple[Path, ...]:
        """Return the files with the weights."""
        directory = self.directory
        if (directory / WEIGHTS).is_file():
            return (directory / WEIGHTS,)
        index = directory / _INDEX
        if index.is_file():
            return self._shards(index)
        pickled = directory / "pytorch_model.bin"
        reason = "only pickled weights, which can run code," if pickled.is_file() else "no weights"
        raise ModelError(f"'{directory}' holds {reason} instead of {WEIGHTS}; fetch or convert it")

    def files(self) -> ModelFiles:
        """Return the model's files."""
        weights = self.weights()
        settings = [
            path
            for path in sorted(self.directory.iterdir())
            if path.suffix in {".json", ".model", ".txt"} and path.name != MANIFEST_NAME
        ]
        return ModelFiles(weights=weights, settings=tuple(settings))

    def _existing(self, name: str) -> Path:
        path = self.directory / name
        if not path.is_file():
            raise ModelError(
                f"'{path.parent}' holds no {name}; give a folder that "
                "ParlerTTSForConditionalGeneration.save_pretrained wrote"
            )
        return path

    def _shards(self, index: Path) -> tuple[Path, ...]:
        try:
            names = set(read_json(index)["weight_map"].values())
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"cannot read '{index}': {error}") from error
        for name in names:
            # A name of another kind could lead out of the folder.
            if not isinstance(name, str) or Path(name).name != name:
                raise ModelError(f"'{index}' names {name!r}, which is not a plain file name")
        paths = tuple(index.with_name(name) for name in sorted(names))
        for path in paths:
            if not path.is_file():
                raise ModelError(f"'{index}' names '{path.name}', which is not there; fetch it")
        if not paths:
            raise ModelError(f"'{index}' names no files; fetch it again")
        return paths


def find_source(place: str) -> ParlerSource:
    """Return the files in a folder, which are checked, or of a name on the hub."""
    source = ParlerSource(location=place)
    source.check()
    return source


def _is_hub_name(location: str) -> bool:
    parts = location.split("/")
    return len(parts) == 2 and all(
        part.strip("-.") and part.replace("-", "").replace(".", "").replace("_", "").isalnum()
        for part in parts
    )


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FETCHED))
    # A name nobody has, no network, a full disk: each is an error of another package.
    except Exception as error:
        raise ModelError(
            f"there is no folder {name!r}, and the hub does not give it: {first_line(error)}"
        ) from error
