"""Ends of the program that are neither a result nor an error of the user's."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
import threading
import traceback
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from tts_compress.cli.command import BAD_USE, INTERNAL_ERROR, INTERRUPTED, TERMINATED
from tts_compress.environment import installed_version
from tts_compress.errors import reason
from tts_compress.plain import masked
from tts_compress.terminal import tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ISSUES = "https://github.com/tts-compress/tts-compress/issues"
_DEBUG = "TTS_COMPRESS_DEBUG"
"""Variable that has tracebacks printed rather than kept in a file."""


class TerminatedError(BaseException):
    """The system asked the program to end; like `KeyboardInterrupt` no error that code catches."""


@contextmanager
def stoppable() -> Iterator[None]:
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


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise TerminatedError


def stopped(error: BaseException, *, resumes: bool) -> int:
    """Tell that the program was asked to end; return its exit code.

    Args:
        error: A `KeyboardInterrupt` or a `TerminatedError`.
        resumes: True if the same command goes on with what was done.
    """
    interrupted = isinstance(error, KeyboardInterrupt)
    again = "run it again to go on" if resumes else "a new run begins from the start"
    tell(f"{'interrupted' if interrupted else 'terminated'}; {again}")
    return INTERRUPTED if interrupted else TERMINATED


def failed(error: Exception) -> int:
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
    elif place := _keep(error):
        tell(f"{said}; report it at {_ISSUES} with '{place}'")
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
