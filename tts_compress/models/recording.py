"""The recording that a system speaks by: found in a folder, checked, exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "REFERENCE",
    "REFERENCE_TEXT",
    "check_duration",
    "exchange_recording",
    "find_prompt",
    "read_header",
]

REFERENCE = "reference.wav"
REFERENCE_TEXT = "reference.txt"
"""The files beside a model that hold its prompt: a recording, and what is said in it."""


def find_prompt(directory: Path) -> Prompt:
    """Return the recording that lies in a folder and what is said in it, if they do.

    Raises:
        ModelError: The text cannot be read.
    """
    audio, text = directory / REFERENCE, directory / REFERENCE_TEXT
    if not audio.is_file():
        return Prompt()
    try:
        said = text.read_text(encoding="utf-8").strip() if text.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read '{text}': {error}") from error
    return Prompt(audio=audio, text=said or None)


def exchange_recording(prompt: Prompt, given: Prompt) -> Prompt:
    """Return a prompt with another recording, or another text of the same one.

    The text of the former recording does not stay when only the recording is exchanged.

    Args:
        prompt: The one so far.
        given: What is to be exchanged; the rest of it is None.
    """
    changed = prompt if given.audio is None else Prompt(audio=given.audio)
    return changed if given.text is None else replace(changed, text=given.text.strip() or None)


def check_duration(path: Path, limits_s: tuple[float, float]) -> None:
    """Refuse a file that is no recording to speak by, without reading all of it.

    Args:
        path: The recording.
        limits_s: How long the shortest and the longest may be, in seconds.

    Raises:
        ModelError: It is missing, no audio, too short or too long.
    """
    header = read_header(path)
    duration_s = header.frames / header.samplerate
    shortest, longest = limits_s
    if not shortest <= duration_s <= longest:
        raise ModelError(
            f"'{path}' is {duration_s:.1f} s long; give a recording of "
            f"{shortest:g} to {longest:g} s"
        )


def read_header(path: Path) -> Any:
    """Return what `soundfile.info` says of a recording.

    Raises:
        ModelError: It is missing, or no audio.
    """
    import soundfile

    try:
        return soundfile.info(path)
    except (OSError, TypeError, soundfile.LibsndfileError) as error:
        raise ModelError(f"cannot read audio from '{path}': {error}") from error
