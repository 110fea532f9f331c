"""Options that say what a model speaks by, for the commands that have it speak."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    import argparse

    from tts_compress.models.base import Model, Prompted

    ModelT = TypeVar("ModelT", bound=Model)

__all__ = ["add_prompt", "prompted"]


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Let a command be given a prompt."""
    parser.add_argument("--reference", type=Path, metavar="WAV", help="a recording to speak like")
    parser.add_argument("--reference-text", metavar="TEXT", help="what is said in it")
    parser.add_argument("--description", metavar="TEXT", help="how to speak, in words")


def prompted(model: ModelT, options: argparse.Namespace) -> ModelT | Prompted:
    """Return a model with the prompt that was given on the command line, if one was.

    Raises:
        ModelError: It speaks by no prompt, or the recording cannot be read.
    """
    from tts_compress.models.base import Prompt, Prompted

    given = (options.reference, options.reference_text, options.description)
    if given == (None, None, None):
        return model
    if not isinstance(model, Prompted):
        raise ModelError(f"'{model.spec}' speaks by no prompt; leave reference and description out")
    audio, text, description = given
    return model.with_prompt(Prompt(audio=audio, text=text, description=description))
