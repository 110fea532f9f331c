"""The `tts-compress` command: one file per subcommand, one subcommand per stage, parsing only."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tts_compress.cli import evaluate, export, gate, inspect, qat, quantize, schemes, synthesize
from tts_compress.cli.arguments import BAD_USE, GOOD, INTERRUPTED
from tts_compress.errors import TTSCompressError, TTSCompressWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 good, 1 a gate failed, 2 usage or bad input."""
    try:
        with _plain_warnings():
            options = _parser().parse_args(arguments)
            command: Callable[[argparse.Namespace], int] = options.command
            with _checkout(options):
                return command(options)
    except TTSCompressError as error:
        print(f"tts-compress: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_USE
    except KeyboardInterrupt:
        print("tts-compress: interrupted; run it again to go on", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone; point stdout elsewhere so that closing it stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each of our own warnings once, as a line for people."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if issubclass(category, TTSCompressWarning):
                print(f"tts-compress: note: {message}", file=sys.stderr)
            else:
                before(message, category, *rest)

        warnings.simplefilter("once", TTSCompressWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _checkout(options: argparse.Namespace) -> Iterator[None]:
    """Use the clone that the command line names, in this process and its workers."""
    given: Path | None = getattr(options, "checkout", None)
    if given is None:
        yield
        return
    from tts_compress.models.checkout import named

    with named(given):
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tts-compress",
        description="Make text-to-speech models small and fast, and prove what that cost.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (quantize, qat, evaluate, gate, synthesize, export, inspect, schemes):
        command.add(commands)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"tts-compress {version('tts-compress')}")
        parser.exit()
