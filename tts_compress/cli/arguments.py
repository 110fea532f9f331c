"""Options and exit codes that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tts_compress.errors import ModelError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tts_compress.models.base import Model, Prompted

    ModelT = TypeVar("ModelT", bound=Model)

GOOD = 0
GATE_FAILED = 1
BAD_USE = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
UNREAD = 141
TERMINATED = 143

MODEL = "such as demo, voice.onnx, out/demo-int8, f5-tts:DIR; all forms: `tts-compress --help`"
"""Help of an argument that names a model."""

_LONGER = 24


class Output(NamedTuple):
    """Printed result of a command."""

    document: Mapping[str, Any]
    """For machines, with `--json`."""

    parts: Iterable[RenderableType]
    """For people, without it."""

    code: int = GOOD
    """Exit code of the program."""


class Parser(ArgumentParser):
    """Parser that names the nearest command, choice or option where one is misspelled."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += nearest(str(value), action.choices or ())
            raise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse what is left over while the command's own options are known."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            known = self._option_string_actions
            self.error(f"unrecognized arguments: {' '.join(rest)}{nearest(rest[0], known)}")
        return options, rest


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formatter for which the parentheses at the end of an option's help state its default."""

    def _expand_help(self, action: argparse.Action) -> str:
        return re.sub(r"\(([^()]*)\)$", r"(default: \1)", super()._expand_help(action))


def explain(parser: ArgumentParser, *examples: str, failed: str = "") -> None:
    """Put a command's examples and exit codes below its options.

    Args:
        parser: The command's.
        examples: Command lines without the program's name.
        failed: What exit code 1 says, for commands that have it.
    """
    codes = {
        GOOD: "good",
        BAD_USE: "usage or bad input",
        INTERNAL_ERROR: "an error of tts-compress itself",
    }
    codes |= {INTERRUPTED: "interrupted"}
    codes |= {GATE_FAILED: failed} if failed else {}
    lines = ["examples:", *(f"  tts-compress {example}" for example in examples), ""]
    lines.append(f"exit codes: {', '.join(f'{code} {codes[code]}' for code in sorted(codes))}")
    parser.epilog = "\n".join(lines)
    parser.formatter_class = _Formatter


def path(text: str) -> Path:
    """Return a path, or refuse one that no file system takes before hours of work are spent."""
    try:
        # Work is done beside an output, under a longer name.
        os.lstat(f"{text.rstrip(os.sep)}{'-' * _LONGER}")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise ArgumentTypeError(f"{text[:60]!r} is no path: {problem}") from error
    return Path(text)


def add_checkout(parser: ArgumentParser) -> None:
    """Add `--checkout`, the clone of a system that runs from one."""
    parser.add_argument(
        "--checkout",
        type=path,
        metavar="DIR",
        help="your clone of GPT-SoVITS or Amphion, for models of these systems",
    )


def add_prompt(parser: ArgumentParser) -> None:
    """Add the options of a prompt, and `--checkout`."""
    parser.add_argument("--reference", type=path, metavar="WAV", help="a recording to speak like")
    parser.add_argument("--reference-text", metavar="TEXT", help="transcript of it")
    parser.add_argument("--description", metavar="TEXT", help="how to speak, in words")
    add_checkout(parser)


def prompted(model: ModelT, options: Namespace) -> ModelT | Prompted:
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
