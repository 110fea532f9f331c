"""Options and exit codes that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    import argparse

    from tts_compress.models.base import Model, Prompted

    ModelT = TypeVar("ModelT", bound=Model)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  no public name

GOOD = 0
GATE_FAILED = 1
BAD_USE = 2
INTERRUPTED = 130


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def add_checkout(parser: argparse.ArgumentParser) -> None:
    """Add `--checkout`, the clone of a system that runs from one."""
    parser.add_argument(
        "--checkout",
        type=Path,
        metavar="DIR",
        help="your clone of GPT-SoVITS or Amphion, for models of these systems",
    )


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the options of a prompt."""
    parser.add_argument("--reference", type=Path, metavar="WAV", help="a recording to speak like")
    parser.add_argument("--reference-text", metavar="TEXT", help="transcript of it")
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
