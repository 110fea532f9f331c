"""How long work tells its caller where it is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["ComponentProgress", "Narrated", "Progress", "Silent", "remark", "say"]


class Progress(Protocol):
    """Receives what long work reports: the command line draws bars, a library may ignore it."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` steps of a stage are finished."""


@runtime_checkable
class Narrated(Progress, Protocol):
    """Also receives words, for work that takes so long that one wants to know how it goes."""

    def remark(self, stage: str, text: str) -> None:
        """Note what there is to say of a stage at the moment, in the place of the last remark."""

    def say(self, line: str) -> None:
        """Note something that stays worth knowing."""


def say(progress: Progress, line: str) -> None:
    """Tell a line to who listens to words."""
    if isinstance(progress, Narrated):
        progress.say(line)


def remark(progress: Progress, stage: str, text: str) -> None:
    """Tell what there is to say of a stage to who listens to words."""
    if isinstance(progress, Narrated):
        progress.remark(stage, text)


class Silent:
    """Ignores what it is told."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Do nothing."""


class ComponentProgress:
    """Reports the work on one component of a model, under its name.

    Args:
        component: Its name.
        progress: Where to.
    """

    def __init__(self, component: str, progress: Progress) -> None:
        self._component = component
        self._progress = progress

    def advance(self, stage: str, done: int, total: int) -> None:
        """Note a step of a stage."""
        self._progress.advance(f"{stage} {self._component}", done, total)

    def remark(self, stage: str, text: str) -> None:
        """Note what there is to report of a stage at the moment."""
        remark(self._progress, f"{stage} {self._component}", text)

    def say(self, line: str) -> None:
        """Note something that stays worth knowing."""
        say(self._progress, f"{self._component}: {line}")
