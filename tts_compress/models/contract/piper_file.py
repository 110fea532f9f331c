"""The `.onnx.json` of a Piper voice: numbers of its contract, and the way from texts to its ids."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import onnxruntime
from pydantic import Field, ValidationError

from tts_compress.config import describe_problems, table_model
from tts_compress.errors import (
    MissingExtraError,
    ModelError,
    TextError,
    model_errors,
    needing,
    reason,
)
from tts_compress.models.espeak import espeak
from tts_compress.models.files import read_json
from tts_compress.models.speakers import MAX_SPEAKERS, read_speakers

if TYPE_CHECKING:
    from piper import PiperVoice

_MOST_SCALE = 10.0
"""Largest scale of durations or noise; at 1000 a word takes minutes and gigabytes."""

_EXTRAS = {"japanese": "ja", "pinyin": "zh", "thai": "th"}
"""Piper's phonemizers that need more packages, and our extras that bring these."""

_PhonemeId: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 16)]
"""A row of the embedding of phonemes, of which published voices have 256."""


_Scale: TypeAlias = Annotated[float, Field(le=_MOST_SCALE, allow_inf_nan=False)]

_INFERENCE = table_model(
    "inference",
    {
        "noise_scale": (Annotated[_Scale, Field(ge=0)], 0.667),
        "length_scale": (Annotated[_Scale, Field(gt=0)], 1.0),
        "noise_w": (Annotated[_Scale, Field(ge=0)], 0.8),
    },
    strict=True,
)

_VOICE = table_model(
    "voice",
    {
        "audio": {
            "sample_rate": Annotated[int, Field(ge=1_000, le=192_000)],
            "quality": (str, ""),
        },
        "espeak": {"voice": Annotated[str, Field(min_length=1)]},
        "inference": (_INFERENCE, _INFERENCE()),
        "num_symbols": Annotated[int, Field(ge=1)],
        "num_speakers": Annotated[int, Field(ge=0, le=MAX_SPEAKERS)],
        "default_speaker_id": (Annotated[int, Field(ge=0, lt=MAX_SPEAKERS)], 0),
        "phoneme_id_map": Annotated[dict[str, list[_PhonemeId]], Field(min_length=1)],
        "phoneme_type": (str, "espeak"),
    },
    strict=True,
)
"""The file's content; keys that only other programs read may be anything."""


class PiperFile:
    """The configuration of a Piper voice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content, self._stated = _read_config(path)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The values that a contract takes by `{ config = "name" }`."""
        locale = self.content.get("language")
        code = locale.get("code") if isinstance(locale, dict) else None
        scales: dict[str, Any] = self._stated.inference.model_dump()
        return scales | {
            "sample_rate": self._stated.audio.sample_rate,
            "language": code if isinstance(code, str) and code else self._stated.espeak.voice,
            "speakers": dict(read_speakers(self.content, self.path)),
            "default_speaker": self._stated.default_speaker_id,
        }

    @property
    def uses_espeak(self) -> bool:
        """True where espeak-ng phonemizes, not one of piper's other phonemizers."""
        return bool(self._stated.phoneme_type == "espeak")

    def sentences(self, text: str, longest: int) -> list[list[int]]:
        """Return phoneme ids of each sentence, as piper itself feeds them."""
        if not text.strip():
            ids = []
        elif self.uses_espeak:
            try:
                ids = espeak().ids(json.dumps(self.content), text)
            except ModelError as error:
                raise ModelError(f"'{self.path}' does not fit the phonemizer: {error}") from error
        else:
            ids = self._sentences_of_piper(text)
        if not ids:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
        if (most := max(len(sentence) for sentence in ids)) > longest:
            raise TextError(
                f"a sentence of {text[:40]!r}… has {most} phoneme ids; "
                f"at most {longest} are accepted: end sentences with a full stop"
            )
        return ids

    def open(self, session: onnxruntime.InferenceSession | None = None) -> "PiperVoice":
        """Return piper's own object around a session, or for phonemizing alone."""
        with needing("piper"):
            from piper import PiperVoice
            from piper.config import PiperConfig
        with model_errors(f"piper cannot use '{self.path}'"):
            config = PiperConfig.from_dict(self.content)
        return PiperVoice(session=session, config=config)

    @cached_property
    def _phonemizer(self) -> "PiperVoice":
        return self.open()

    def _sentences_of_piper(self, text: str) -> list[list[int]]:
        """Return them by one of piper's other phonemizers, in this process."""
        phonemizer, language = self._phonemizer, self.facts["language"]
        try:
            sentences = [p for p in phonemizer.phonemize(text) if p]
            return [phonemizer.phonemes_to_ids(sentence) for sentence in sentences]
        except ImportError as error:
            extra = _EXTRAS.get(self._stated.phoneme_type, "piper")
            raise MissingExtraError(error.name or "piper", extra) from error
        except OSError as error:  # the Chinese one downloads its network at first
            raise ModelError(
                f"piper's phonemizer for {language!r} cannot be opened: {reason(error)}; it "
                "needs the network once"
            ) from error
        except (RuntimeError, ValueError, KeyError) as error:  # a map without needed symbols
            raise ModelError(f"'{self.path}' does not fit the phonemizer: {error}") from error


def _read_config(path: Path) -> tuple[dict[str, Any], Any]:
    """Return the content of the file beside a voice, checked before anything trusts it."""
    if not path.is_file():
        raise ModelError(
            f"no file '{path}'; a Piper voice is a .onnx file with its .onnx.json beside it, or "
            "its tokens.txt as of sherpa-onnx; the graph of another voice needs a contract.toml "
            "beside it (docs/contracts.md), and a bare one 'onnx:' before the path"
        )
    config: dict[str, Any] = _whole(read_json(path))
    try:
        return config, _VOICE.model_validate(config)
    except ValidationError as error:
        problems = describe_problems(error)
        raise ModelError(f"'{path}' is not a Piper voice's configuration: {problems}") from error


def _whole(content: Any) -> Any:
    """Return JSON's content with integers for numbers such as `22050.0`, as piper takes them."""
    if isinstance(content, dict):
        return {key: _whole(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_whole(value) for value in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content
