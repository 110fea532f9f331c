"""The JSON file beside a Piper voice, checked before anything trusts it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_voice_config"]


class _Table(BaseModel):
    """A part of the file; what only other programs read is not looked at."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Audio(_Table):
    sample_rate: int = Field(ge=1_000, le=192_000)
    quality: str = ""


class _Espeak(_Table):
    voice: str = Field(min_length=1)


class _Inference(_Table):
    noise_scale: float = Field(default=0.667, ge=0, allow_inf_nan=False)
    length_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    noise_w: float = Field(default=0.8, ge=0, allow_inf_nan=False)


class _VoiceConfig(_Table):
    audio: _Audio
    espeak: _Espeak
    inference: _Inference = _Inference()
    num_symbols: int = Field(ge=1)
    num_speakers: int = Field(ge=0)
    default_speaker_id: int = Field(default=0, ge=0)
    phoneme_id_map: dict[str, list[int]] = Field(min_length=1)
    phoneme_type: str = "espeak"


def read_voice_config(path: Path) -> dict[str, Any]:
    """Return the file's content, as it is.

    Raises:
        ModelError: The file is missing, or not a Piper voice's configuration; the message names
            every wrong key.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        _VoiceConfig.model_validate(config)
    except FileNotFoundError as error:
        raise ModelError(
            f"no file '{path}'; a Piper voice is a .onnx file with its .onnx.json beside it; "
            "of any other graph write 'onnx:' before the path"
        ) from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'file'}: {problem['msg']}"
            for problem in error.errors()
        )
        raise ModelError(f"'{path}' is not a Piper voice's configuration: {problems}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error
    return dict(config)
