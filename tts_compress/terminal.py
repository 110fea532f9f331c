"""Output of the command line: progress bars, tables, JSON."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType
    from rich.progress import Progress, TaskID


class Bars:
    """One progress bar per stage, on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move a stage's bar."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, status="")
        self._progress.update(self._tasks[stage], completed=done, total=total)

    def status(self, stage: str, text: str) -> None:
        """Show a text beside a stage's bar."""
        if stage in self._tasks:
            self._progress.update(self._tasks[stage], status=text)

    def message(self, line: str) -> None:
        """Print a line above the bars, or into the log file that is written instead."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Show bars while the block lasts; not in a pipe or a log file."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        Elapsed(),
        Remaining(),
        TextColumn("{task.fields[status]}"),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        yield Bars(progress)


def show(*parts: RenderableType) -> None:
    """Print text or tables to standard output."""
    from rich.console import Console

    # Paths and names are data: no markup, no wrapping in the middle of a path.
    console = Console(markup=False, highlight=False, soft_wrap=not sys.stdout.isatty())
    for part in parts:
        console.print(part)


def show_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document to standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def human_bytes(count: int) -> str:
    """Return a size in megabytes (10^6), as download pages state it."""
    return f"{count / 1e6:.2f} MB"
