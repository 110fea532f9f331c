"""The `tts-compress` command: one file per subcommand, one subcommand per stage, parsing only."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

from tts_compress.cli.command import BAD_USE, GOOD, UNREAD, Command, Output, Parser
from tts_compress.cli.ending import TerminatedError, failed, stoppable, stopped
from tts_compress.environment import installed_version
from tts_compress.errors import TTSCompressError, TTSCompressWarning
from tts_compress.families import families
from tts_compress.terminal import show, show_json, tell, usable_streams

__all__ = ["command_parser", "main"]

_PROGRAM = Command(
    """Make text-to-speech models small and fast, and prove what that cost.

Examples:
    quantize demo --output out/demo-int8
    evaluate demo out/demo-int8 --output out/report
    gate out/report""",
    failed="a gate failed",
)

_COMMANDS = (
    *("quantize", "qat", "evaluate", "search", "sensitivity", "gate", "sweep", "synthesize"),
    *("export", "check", "inspect", "card", "push", "schemes", "completion"),
)
"""Modules with a `COMMAND` and its function `run`, as the help lists them."""


@usable_streams()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 is good, 1 a gate that failed, 2 usage or bad input, 70 an internal error, 130 an interrupt,
    143 a request to end, and 141 a pipe that nobody reads before the work is done.
    """
    code, resumes = GOOD, False
    try:
        with stoppable(), _plain_warnings():
            options = _parse(arguments)
            code, resumes = UNREAD, _resumes(options)
            with _checkout(options):
                output: Output = options.run(options)
            code = output.code
            if options.json:
                show_json(output.document)
            else:
                show(*output.parts)
            sys.stdout.flush()  # a closed pipe is noticed here, not when Python ends
            return code
    except TTSCompressError as error:
        tell(str(error))
        return BAD_USE
    except (KeyboardInterrupt, TerminatedError) as error:
        return stopped(error, resumes=resumes)
    except BrokenPipeError:
        # The reader of a pipe has gone; point the streams elsewhere so that closing them is quiet.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return code
    except Exception as error:
        return failed(error)


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = command_parser()
    try:
        if not (sys.argv[1:] if arguments is None else arguments):
            parser.print_help(sys.stderr)
            parser.exit(BAD_USE)
        return parser.parse_args(arguments)
    except SystemExit:
        sys.stdout.flush()  # the help, into a pipe
        raise


def _resumes(options: Namespace) -> bool:
    """Return True if the same command goes on with what was done; `evaluate` may have no output."""
    given = vars(options)
    return options.resumes and bool(given.get("work") or given.get("output", "a plan's"))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each of our own warnings once, as a line for people."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def print_note(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if issubclass(category, TTSCompressWarning):
                tell(f"note: {message}")
            else:
                before(message, category, *rest)

        warnings.simplefilter("once", TTSCompressWarning)
        warnings.showwarning = print_note  # type: ignore[assignment]
        yield


def _checkout(options: Namespace) -> AbstractContextManager[object]:
    """Use the clone that the command line names, in this process and its workers."""
    if getattr(options, "checkout", None) is None:
        return nullcontext()
    from tts_compress.models.checkout import named

    return named(options.checkout)


def command_parser() -> ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(prog="tts-compress")
    _PROGRAM.add_to(parser)
    parser.epilog = f"{_model_forms()}\n\n{parser.epilog}"
    version = f"tts-compress {installed_version('tts-compress')}"
    parser.add_argument(
        "--version", action="version", version=version, help="print the version and exit"
    )
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in _COMMANDS:
        module = import_module(f"tts_compress.cli.{name}")
        command = commands.add_parser(name, help=module.COMMAND.summary)
        module.COMMAND.add_to(command)
        command.add_argument("--json", action="store_true", help="print JSON for machines")
        command.set_defaults(run=module.run, resumes=module.COMMAND.resumes)
    return parser


def _model_forms() -> str:
    """Return the forms in which commands take a model, a line each."""
    forms = [
        family.location if family.suffixes else f"{family.name}: and {family.location}"
        for family in families().values()
    ]
    return "\n  ".join(["models:", "an artifact's directory", *forms])
