"""Progress of one component's training, by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.progress import Narrated

if TYPE_CHECKING:
    from tts_compress.progress import Progress

__all__ = ["ToldOf", "say"]


class ToldOf:
    """Passes on what the loop tells, and of which component it is.

    Args:
        component: Its name.
        progress: Who is told.
    """

    def __init__(self, component: str, progress: Progress) -> None:
        self._component = component
        self._progress = progress

    def advance(self, stage: str, done: int, total: int) -> None:
        """Note a step of a stage."""
        self._progress.advance(self._stage(stage), done, total)

    def remark(self, stage: str, text: str) -> None:
        """Note what there is to say of a stage at the moment."""
        if isinstance(self._progress, Narrated):
            self._progress.remark(self._stage(stage), text)

    def say(self, line: str) -> None:
        """Note something that stays worth knowing."""
        say(self._progress, f"{self._component}: {line}")

    def _stage(self, stage: str) -> str:
        return f"{stage} {self._component}"


def say(progress: Progress, line: str) -> None:
    """Tell a line to who listens to words."""
    if isinstance(progress, Narrated):
        progress.say(line)
