"""Reference recordings: found in a folder, checked, replaced."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt

REFERENCE = "reference.wav"
REFERENCE_TEXT = "reference.txt"
"""The files beside a model that hold its prompt: a recording, and its text."""


def find_prompt(directory: Path) -> Prompt:
    """Return the reference recording in a folder and its text, where they are there.

    Raises:
        ModelError: The text cannot be read.
    """
    audio, text = directory / REFERENCE, directory / REFERENCE_TEXT
    if not audio.is_file():
        return Prompt()
    try:
        spoken = text.read_text(encoding="utf-8").strip() if text.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read '{text}': {error}") from error
    return Prompt(audio=audio, text=spoken or None)


def exchange_recording(prompt: Prompt, given: Prompt) -> Prompt:
    """Return a prompt with another recording, or another text of the same one.

    A new recording without a text drops the text of the former one.

    Args:
        prompt: The one so far.
        given: The new parts; the rest of it is None.
    """
    changed = prompt if given.audio is None else Prompt(audio=given.audio)
    return changed if given.text is None else replace(changed, text=given.text.strip() or None)


def check_duration(path: Path, limits_s: tuple[float, float]) -> None:
    """Refuse a file that cannot be a reference recording, without reading all of it.

    Args:
        path: The recording.
        limits_s: The shortest and the longest duration, in seconds.

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
    """Return the `soundfile.info` of a recording.

    Raises:
        ModelError: It is missing, or no audio.
    """
    import soundfile

    try:
        return soundfile.info(path)
    except (OSError, TypeError, soundfile.LibsndfileError) as error:
        raise ModelError(f"cannot read audio from '{path}': {error}") from error
