"""The recording that GPT-SoVITS speaks by."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tts_compress.models.recording import REFERENCE, REFERENCE_TEXT, check_duration

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.models.base import Prompt

__all__ = ["ACCEPTED_S", "write_prompt"]

ACCEPTED_S = (3.0, 10.0)
"""How long it may be; upstream takes no others, after conversion to 16 kHz."""


def write_prompt(prompt: Prompt, directory: Path) -> None:
    """Write the files that `find_prompt` finds; what the prompt lacks is left out.

    Raises:
        ModelError: The recording cannot be read.
    """
    if prompt.audio is not None:
        check_duration(prompt.audio, ACCEPTED_S)
        shutil.copyfile(prompt.audio, directory / REFERENCE)
    if prompt.text is not None:
        (directory / REFERENCE_TEXT).write_text(f"{prompt.text}\n", encoding="utf-8")
