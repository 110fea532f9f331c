"""The files of a Parler-TTS model: a folder in the official format, here or on a model hub."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import read_json
from tts_compress.models.hub_folder import (
    CONFIG,
    GENERATION,
    find_folder,
    find_weights,
    list_files,
)
from tts_compress.reading import read_text

DESCRIPTION = "description.txt"

_FETCHED = ["*.json", "*.model", "*.safetensors", "merges.txt", "vocab.txt", DESCRIPTION]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerOptions:
    """Options of sampling; None stands for the value in the model's `generation_config.json`."""

    do_sample: bool | None = None
    """True to draw tokens by their probabilities; otherwise the most probable is taken."""

    temperature: float | None = None
    """Divides the scores before they become probabilities."""

    max_length: int | None = None
    """Steps after which speech ends in any case; the first makes no sound."""

    min_new_tokens: int | None = None
    """Steps before speech may end."""

    def given(self) -> dict[str, Any]:
        """Return the options that are not None, as keywords of `generate`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ParlerSource:
    """The folder that a model is read from.

    Raises:
        ModelError: Raised by its methods: a file is missing, unreadable, or not what it should be.
    """

    directory: Path

    options = ParlerOptions()

    @property
    def prompt(self) -> Prompt:
        """The folder's own description of the voice, if it has one."""
        path = self.directory / DESCRIPTION
        if not path.is_file():
            return Prompt()
        try:
            text = read_text(path).strip()
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read '{path}': {error}") from error
        if not text:
            raise ModelError(f"'{path}' is empty; describe the voice in it, or remove it")
        return Prompt(description=text)

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

    def weights(self) -> tuple[Path, ...]:
        """Return the files with the weights; pickled ones are refused."""
        return find_weights(self.directory)

    def files(self) -> ModelFiles:
        """Return the model's files."""
        return list_files(self.directory)

    def check(self) -> None:
        """Refuse a folder that is not one of a model."""
        self.weights()
        self.read_config()
        self._existing(GENERATION)

    def _existing(self, name: str) -> Path:
        path = self.directory / name
        if not path.is_file():
            raise ModelError(
                f"'{path.parent}' holds no {name}; give a folder that "
                "ParlerTTSForConditionalGeneration.save_pretrained wrote"
            )
        return path


def find_source(place: str) -> ParlerSource:
    """Return the files in a folder, or of a name on the hub, fetched where they are not here."""
    directory = find_folder(place, "Parler-TTS", "parler-tts/parler-tts-mini-v1", _FETCHED)
    source = ParlerSource(directory=directory)
    source.check()
    return source
