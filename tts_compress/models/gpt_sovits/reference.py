"""The recording that GPT-SoVITS speaks by."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.models.base import Prompt

__all__ = [
    "REFERENCE",
    "REFERENCE_TEXT",
    "check_recording",
    "find_prompt_files",
    "write_prompt",
]

REFERENCE = "reference.wav"
REFERENCE_TEXT = "reference.txt"
"""The files of an artifact that hold the prompt."""

_SHORTEST_S, _LONGEST_S = 3.0, 10.0
"""Upstream takes no others, after conversion to 16 kHz."""


def check_recording(path: Path) -> None:
    """Refuse a file that upstream could not speak by, without reading all of it.

    Raises:
        ModelError: It is missing, no audio, or not of 3 to 10 seconds.
    """
    import soundfile

    try:
        info = soundfile.info(path)
    except (OSError, TypeError, soundfile.LibsndfileError) as error:
        raise ModelError(f"cannot read audio from '{path}': {error}") from error
    duration_s = info.frames / info.samplerate
    if not _SHORTEST_S <= duration_s <= _LONGEST_S:
        raise ModelError(
            f"'{path}' is {duration_s:.1f} s long; GPT-SoVITS speaks by a recording of "
            f"{_SHORTEST_S:g} to {_LONGEST_S:g} s: cut it"
        )


def find_prompt_files(directory: Path) -> tuple[Path | None, str | None]:
    """Return the recording that lies in a folder and what is said in it, if they do.

    Raises:
        ModelError: The text cannot be read.
    """
    audio, text = directory / REFERENCE, directory / REFERENCE_TEXT
    try:
        said = text.read_text(encoding="utf-8").strip() if text.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read '{text}': {error}") from error
    return audio if audio.is_file() else None, said or None


def write_prompt(prompt: Prompt, directory: Path) -> None:
    """Write the files that `find_prompt_files` finds; what the prompt lacks is left out.

    Raises:
        ModelError: The recording cannot be read.
    """
    if prompt.audio is not None:
        check_recording(prompt.audio)
        shutil.copyfile(prompt.audio, directory / REFERENCE)
    if prompt.text is not None:
        (directory / REFERENCE_TEXT).write_text(f"{prompt.text}\n", encoding="utf-8")
