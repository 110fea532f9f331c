"""Output of the command line: progress bars, tables, JSON."""

from __future__ import annotations

import codecs
import json
import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.plain import harmless, json_escaped, masked, shortened
from tts_compress.progress import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.progress import Progress, TaskID

_MOST_SHOWN = 2_000
_PACE_OVER_S = 600.0
"""Time over which a bar takes the mean pace: some steps take a minute."""


class Bars:
    """One progress bar per stage, on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move a stage's bar."""
        if stage not in self._tasks:
            # Steps that were done before say nothing about the pace.
            task = self._progress.add_task(stage, total=total, completed=done, status="")
            self._tasks[stage] = task
        self._progress.update(self._tasks[stage], completed=done, total=total)

    def status(self, stage: str, text: str) -> None:
        """Show a text beside a stage's bar."""
        if stage in self._tasks:
            self._progress.update(self._tasks[stage], status=text)

    def message(self, line: str) -> None:
        """Print a line above the bars."""
        shown = harmless(line)
        self._progress.console.print(shown, markup=False, highlight=False, soft_wrap=True)


class _Harmless:
    """Text or a table without characters that steer the terminal, which names of files may hold."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))


@contextmanager
def progress_bars() -> Iterator[Bars | Lines]:
    """Show bars while the block lasts; lines in a pipe or a log file."""
    from rich import progress as rich

    console = _open_console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    name, status = map(rich.TextColumn, ("{task.description:<22}", "{task.fields[status]}"))
    times = rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
    columns = (name, rich.BarColumn(), rich.MofNCompleteColumn(), *times, status)
    with rich.Progress(*columns, console=console, speed_estimate_period=_PACE_OVER_S) as progress:
        yield Bars(progress)


@contextmanager
def usable_streams() -> Iterator[None]:
    """Make standard output and error accept every text while the block lasts.

    Characters that their encoding lacks, as cp1252 lacks U+2264, are written as escapes. Streams
    that are closed (`>&-`) lead nowhere; otherwise the next file that is opened would have their
    number, and get what libraries and child processes print.
    """
    with ExitStack() as stack:
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                setattr(sys, name, nowhere)
                stack.callback(setattr, sys, name, None)
            elif isinstance(stream, TextIOWrapper):
                stack.callback(_set_errors, stream, stream.errors)
                _set_errors(stream, "backslashreplace")
        yield


def _set_errors(stream: TextIOWrapper, errors: str | None) -> None:
    with suppress(OSError):  # it flushes, into a pipe that nobody may read
        stream.reconfigure(errors=errors)


def show(*parts: RenderableType) -> None:
    """Print text or tables to standard output."""
    # Paths and names are data: no markup, no wrapping in the middle of a path.
    console = _open_console(markup=False, highlight=False, soft_wrap=not sys.stdout.isatty())
    for part in parts:
        console.print(_Harmless(part))


def tell(text: str) -> None:
    """Print a remark or an error to standard error, on one line that names the program."""
    with suppress(OSError):  # nobody reads standard error
        print(f"tts-compress: {shortened(masked(text), _MOST_SHOWN)}", file=sys.stderr)


def _open_console(**options: bool) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the command line; rich would end the program with exit code 1."""
            raise BrokenPipeError

    return Plain(**options)  # type: ignore[arg-type]


def show_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document to standard output."""
    # A stream's own escapes, such as `\xe9`, are none that JSON has.
    is_utf8 = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
    # As in the files: "NaN" and "Infinity" are text, because JSON has no such numbers.
    document = json.loads(json.dumps(document), parse_constant=str)
    print(json_escaped(json.dumps(document, indent=2, ensure_ascii=not is_utf8)))


def human_bytes(count: int) -> str:
    """Return a size in megabytes (10^6), as download pages state it."""
    return f"{count / 1e6:.2f} MB"
