"""Progress of long work, for its caller."""

from typing import Protocol, runtime_checkable


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


class ComponentProgress:
    """Reports the work on one component of a model, under its name.

    Args:
        component: Its name.
        progress: Receives the reports.
    """

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
