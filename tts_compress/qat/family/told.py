"""Progress of one component's training, by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.progress import remark, say

if TYPE_CHECKING:
    from tts_compress.progress import Progress

__all__ = ["ToldOf"]


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
        remark(self._progress, self._stage(stage), text)

    def say(self, line: str) -> None:
        """Note something that stays worth knowing."""
        say(self._progress, f"{self._component}: {line}")

    def _stage(self, stage: str) -> str:
        return f"{stage} {self._component}"
