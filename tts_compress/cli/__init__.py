"""The `tts-compress` command: one file per subcommand, one subcommand per stage, parsing only.

Here is what all have in common: the parser, and the ends of the program that are neither a result
nor an error of the user's.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
import threading
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from tts_compress.cli.command import (
    BAD_USE,
    GOOD,
    INTERNAL_ERROR,
    INTERRUPTED,
    TERMINATED,
    UNREAD,
    Command,
    Output,
    Parser,
)
from tts_compress.environment import installed_version
from tts_compress.errors import TTSCompressError, TTSCompressWarning, reason
from tts_compress.families import families
from tts_compress.plain import masked
from tts_compress.terminal import show, show_json, tell, usable_streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    *("stream", "listening", "export", "check", "inspect", "card", "push", "schemes", "completion"),
)
"""Modules with a `COMMAND` and its function `run`, as the help lists them."""

_ISSUES = "https://github.com/tts-compress/tts-compress/issues"
_DEBUG = "TTS_COMPRESS_DEBUG"
"""Variable that has tracebacks printed rather than kept in a file."""


class TerminatedError(BaseException):
    """The system asked the program to end; like `KeyboardInterrupt` no error that code catches."""


@usable_streams()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 is good, 1 a gate that failed, 2 usage or bad input, 70 an internal error, 130 an interrupt,
    143 a request to end, and 141 a pipe that nobody reads before the work is done.
    """
    code, resumes = GOOD, False
    try:
        with _stoppable(), _plain_warnings():
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
        again = "run it again to go on" if resumes else "a new run begins from the start"
        interrupted = isinstance(error, KeyboardInterrupt)
        tell(f"{'interrupted' if interrupted else 'terminated'}; {again}")
        return INTERRUPTED if interrupted else TERMINATED
    except BrokenPipeError:
        # The reader of a pipe has gone; point the streams elsewhere so that closing them is quiet.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return code
    except Exception as error:
        return _failed(error)


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
    output = getattr(options, "work", None) or getattr(options, "output", "a plan's")
    return options.resumes and bool(output)


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


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn the signals that ask the program to end into exceptions while the block lasts.

    A second Ctrl-C ends it at once, whatever it is cleaning up; its processes end with it.
    """
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            handlers = ((signal.SIGINT, _interrupt), (signal.SIGTERM, _terminate))
            for number, handler in handlers:
                if signal.getsignal(number) not in {signal.SIG_DFL, signal.default_int_handler}:
                    continue  # ignored, as for a job in the background, or the caller's
                stack.callback(signal.signal, number, signal.signal(number, handler))
        yield


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    raise KeyboardInterrupt


def _terminate(*_: object) -> NoReturn:
    raise TerminatedError


def _failed(error: Exception) -> int:
    """Tell about an error that nothing in the program expects; return its exit code."""
    if isinstance(error, OSError) and error.strerror:  # a full disk, too many open files
        where = "" if error.filename is None else f": '{error.filename}'"
        tell(f"{error.strerror}{where}")
        return BAD_USE
    if isinstance(error, MemoryError):
        tell("not enough memory; use a machine with more, or a smaller model")
        return INTERNAL_ERROR
    said = f"internal error: {type(error).__name__}: {reason(error)}"
    if os.environ.get(_DEBUG):
        print(masked("".join(traceback.format_exception(error))), file=sys.stderr)
        tell(f"{said}; report it at {_ISSUES} with the lines above")
    elif path := _keep(error):
        tell(f"{said}; report it at {_ISSUES} with '{path}'")
    else:
        tell(f"{said}; report it at {_ISSUES} with what it prints where {_DEBUG}=1 is set")
    return INTERNAL_ERROR


def _keep(error: Exception) -> str | None:
    """Write all that a report needs into a file of the user's cache; return its path."""
    lines = [
        f"tts-compress {installed_version('tts-compress')}, Python {platform.python_version()}, "
        f"{platform.platform()}",
        shlex.join(sys.argv),
        "".join(traceback.format_exception(error)),
    ]
    with suppress(Exception):  # the error itself may be that nothing can be written
        from tts_compress.artifact import write_text_atomically
        from tts_compress.evaluation.store import cache_folder

        folder = cache_folder() / "errors"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}-{os.getpid()}.txt"
        write_text_atomically(path, masked("\n".join(lines)))
        return str(path)
    return None
