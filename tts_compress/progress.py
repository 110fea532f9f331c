"""Progress of long work, for its caller."""

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from tts_compress.plain import harmless

_Item = TypeVar("_Item")

_BETWEEN_LINES_S = 30.0


class Progress(Protocol):
    """Receives reports of long work: the command line draws bars, a library may ignore them."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` steps of a stage are finished."""


@runtime_checkable
class VerboseProgress(Progress, Protocol):
    """Also receives texts, for work that takes very long."""

    def status(self, stage: str, text: str) -> None:
        """Note the current status of a stage, in place of its last one."""

    def message(self, line: str) -> None:
        """Note a line that stays."""


def report_message(progress: Progress, line: str) -> None:
    """Report a line, if texts are received."""
    if isinstance(progress, VerboseProgress):
        progress.message(line)


def report_status(progress: Progress, stage: str, text: str) -> None:
    """Report the status of a stage, if texts are received."""
    if isinstance(progress, VerboseProgress):
        progress.status(stage, text)


def counted(items: Iterable[_Item], progress: Progress, stage: str, total: int) -> Iterator[_Item]:
    """Yield items, each of which is a step of a stage."""
    for done, item in enumerate(items):
        progress.advance(stage, min(done, total), total)
        yield item
    progress.advance(stage, total, total)


class Silent:
    """Ignores all reports."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Do nothing."""


class Lines:
    """A line per finished stage, and every half a minute; on standard error."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}
        self._status: dict[str, str] = {}

    def advance(self, stage: str, done: int, total: int) -> None:
        """Print a line if one is due."""
        now = monotonic()
        begun = self._stages.setdefault(stage, _Stage(now, done, now))
        spent, steps = now - begun.begun_at, done - begun.begun_with
        if done >= total:
            del self._stages[stage]
            if steps:
                self.message(f"{stage}: {total} of {total} in {_clock(spent)}")
        elif now - begun.told_at >= _BETWEEN_LINES_S:
            self._stages[stage] = begun._replace(told_at=now)
            left = f", {_clock(spent / steps * (total - done))} left" if steps else ""
            text = self._status.get(stage, "")
            self.message(f"{stage}: {done} of {total}{left}{text and ', '}{text}")

    def status(self, stage: str, text: str) -> None:
        """Keep a text for the next line of a stage."""
        self._status[stage] = text

    def message(self, line: str) -> None:
        """Print a line."""
        print(harmless(line), file=sys.stderr, flush=True)


class _Stage(NamedTuple):
    begun_at: float
    begun_with: int
    told_at: float


def _clock(seconds: float) -> str:
    """Return a duration as `H:MM:SS`, like the bars."""
    return str(timedelta(seconds=round(seconds)))


def default_progress() -> Progress:
    """Return what shows progress to whoever calls the library: lines where somebody looks on."""
    is_looked_at = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    return Lines() if is_looked_at else Silent()


class Stopwatch:
    """Passes reports on, and notes how long each stage takes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._begun: dict[str, tuple[float, int]] = {}
        self.stages: dict[str, tuple[float, int]] = {}
        """Seconds from the first report of a stage to the last, and the steps that were done in
        between; by name, in the order in which they began."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Report a step of a stage."""
        now = monotonic()
        begun_at, begun_with = self._begun.setdefault(stage, (now, done))
        self.stages[stage] = now - begun_at, done - begun_with
        self._progress.advance(stage, done, total)


class ComponentProgress:
    """Reports the work on one component of a model, under its name."""

    def __init__(self, component: str, progress: Progress) -> None:
        self._component = component
        self._progress = progress

    def advance(self, stage: str, done: int, total: int) -> None:
        """Report a step of a stage."""
        self._progress.advance(f"{stage} {self._component}", done, total)

    def status(self, stage: str, text: str) -> None:
        """Report the status of a stage."""
        report_status(self._progress, f"{stage} {self._component}", text)

    def message(self, line: str) -> None:
        """Report a line."""
        report_message(self._progress, f"{self._component}: {line}")
