"""How an evaluation is run; what it judges is in the suite."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.process import WORKER, WorkerOptions
from tts_compress.progress import Progress, Silent

__all__ = ["RUNTIMES", "EvaluationOptions"]

RUNTIMES = ("plain-attention", "compile")
"""Ways to run a torch model besides the system's own, which has fused attention and no compiler."""


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

    runtimes: tuple[str, ...] = ()
    """Other ways to run torch models that are timed too, of `RUNTIMES`."""

    teacher_forced_texts: int = 8
    """How many texts language models are compared on word for word, spread over the suite's
    lengths; 0 leaves it out."""

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
        if self.teacher_forced_texts < 0:
            raise EvaluationError(
                f"teacher_forced_texts is {self.teacher_forced_texts}; 0 or a positive number is "
                "needed"
            )
        unknown = [name for name in self.runtimes if name not in RUNTIMES]
        if unknown or len({*self.runtimes}) < len(self.runtimes):
            raise EvaluationError(
                f"runtimes are {', '.join(self.runtimes)}; give each of {', '.join(RUNTIMES)} "
                "at most once"
            )

    @property
    def workers(self) -> WorkerOptions:
        """How its worker processes are run."""
        return WorkerOptions(threads=self.threads, timeout_s=self.timeout_s, command=self.worker)
