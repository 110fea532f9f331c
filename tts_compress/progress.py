"""Progress of long work, for its caller."""

from time import monotonic
from typing import NamedTuple, Protocol, runtime_checkable


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


class Silent:
    """Ignores all reports."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Do nothing."""


class Spent(NamedTuple):
    """Time from the first report of a stage to the last."""

    seconds: float
    steps: int
    """Steps that were done in it; those that were finished before are not among them."""


class Stopwatch:
    """Passes reports on, and notes how long each stage takes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._begun: dict[str, tuple[float, int]] = {}
        self.stages: dict[str, Spent] = {}
        """By name, in the order in which they began."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Report a step of a stage."""
        now = monotonic()
        begun_at, begun_with = self._begun.setdefault(stage, (now, done))
        self.stages[stage] = Spent(now - begun_at, done - begun_with)
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
