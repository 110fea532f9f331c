"""How long work tells its caller where it is."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Receives what long work reports: the command line draws bars, a library may ignore it."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` steps of a stage are finished."""


class Silent:
    """Ignores what it is told."""

    def advance(self, stage: str, done: int, total: int) -> None:
        """Do nothing."""
