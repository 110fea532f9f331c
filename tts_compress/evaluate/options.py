"""How an evaluation is run; what it judges is in the suite."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tts_compress.errors import EvaluationError
from tts_compress.evaluate.process import WORKER, WorkerOptions
from tts_compress.progress import Progress, Silent

__all__ = ["EvaluationOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """Settings of one evaluation.

    Raises:
        EvaluationError: A number is out of range.
    """

    threads: int = 1
    """Of each model: one thread compares kernels rather than schedulers."""

    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that recognize speech at the same time."""

    timing_texts: int = 8
    """How many texts are timed, spread over the suite's lengths."""

    timing_runs: int = 5
    """How often each is timed per model."""

    keep_audio: bool = True
    """Write what both models said beside the report, where there is an output directory."""

    seeds: tuple[int, ...] | None = None
    """Instead of the suite's."""

    timeout_s: float = 600.0
    """For one text to be spoken or recognized, and for a model to load."""

    worker: tuple[str, ...] = WORKER
    """The program that runs a model or a recognizer."""

    progress: Progress = field(default_factory=Silent)

    def __post_init__(self) -> None:
        numbers = ("threads", "jobs", "timing_texts", "timing_runs", "timeout_s")
        low = [f"{name} is {getattr(self, name)}" for name in numbers if getattr(self, name) <= 0]
        if low:
            raise EvaluationError(f"{', '.join(low)}; a positive number is needed")

    @property
    def workers(self) -> WorkerOptions:
        """How its worker processes are run."""
        return WorkerOptions(threads=self.threads, timeout_s=self.timeout_s, command=self.worker)
