"""The files of a voice of transformers: a folder as `save_pretrained` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import read_json
from tts_compress.models.hub_folder import CONFIG, find_folder, find_weights, list_files
from tts_compress.models.speakers import MAX_SPEAKERS, NO_SPEAKERS

TOKENIZER = "tokenizer_config.json"

KINDS = ("vits",)
"""Values of `model_type` in `config.json` that are spoken with."""

_FETCHED = ("*.json", "*.model", "*.safetensors", "merges.txt", "vocab.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """Choices of the user."""

    speaker: str | None = None
    """Name of the speaker; None where none was chosen."""


@dataclass(frozen=True, kw_only=True)
class VoiceSource:
    """The folder that a voice is read from.

    Raises:
        ModelError: Raised by its methods: a file is missing, unreadable, or not what it should be.
    """

    directory: Path

    options = VoiceOptions()
    prompt = Prompt()

    def read_config(self) -> dict[str, Any]:
        """Return the content of `config.json`, checked."""
        path = self._existing(CONFIG)
        config = read_json(path)
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind not in KINDS:
            raise ModelError(
                f"'{path}' is of a model of type {kind!r}; accepted: {', '.join(KINDS)}"
            )
        checked: dict[str, Any] = config
        return checked

    @property
    def speakers(self) -> Mapping[str, int]:
        """Ids of the speakers by name, which is a number; empty for a voice of one."""
        count = self.read_config().get("num_speakers", 1)
        if type(count) is not int or not 0 <= count <= MAX_SPEAKERS:
            raise ModelError(
                f"'{self.directory / CONFIG}' has num_speakers {count!r:.40}; "
                f"give an integer from 1 to {MAX_SPEAKERS}"
            )
        if count <= 1:
            return NO_SPEAKERS
        return MappingProxyType({str(number): number for number in range(count)})

    @property
    def language(self) -> str | None:
        """Language of the texts by the tokenizer's settings, such as `deu`; None where unstated."""
        settings = self._tokenizer()
        if settings.get("phonemize") is True:
            return "en-us"  # transformers phonemizes texts of every voice as American English
        stated = settings.get("language")
        return stated if isinstance(stated, str) and stated else None

    def files(self) -> ModelFiles:
        """Return the voice's files."""
        return list_files(self.directory)

    def check(self) -> None:
        """Refuse a folder that is not one of a voice."""
        find_weights(self.directory)
        self.read_config()
        self._existing(TOKENIZER)

    def _tokenizer(self) -> dict[str, Any]:
        path = self._existing(TOKENIZER)
        settings = read_json(path)
        if not isinstance(settings, dict):
            raise ModelError(f"'{path}' holds no settings; fetch it again")
        return settings

    def _existing(self, name: str) -> Path:
        path = self.directory / name
        if not path.is_file():
            raise ModelError(
                f"'{path.parent}' holds no {name}; give a folder that save_pretrained of the "
                "model and of its tokenizer wrote"
            )
        return path


def find_source(place: str) -> VoiceSource:
    """Return the files in a folder, or of a name on the hub, fetched where they are not here."""
    directory = find_folder(place, "transformers", "facebook/mms-tts-eng", _FETCHED)
    source = VoiceSource(directory=directory)
    source.check()
    return source
