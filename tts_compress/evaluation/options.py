"""Settings of how an evaluation is run; its texts and limits are in the suite and the gates."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.errors import EvaluationError
from tts_compress.models.execution import PROCESSOR, Execution
from tts_compress.options import option
from tts_compress.progress import Progress, default_progress

if TYPE_CHECKING:
    from tts_compress.evaluation.process import KeptWorkers

_MOST_THREADS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """Settings of one evaluation.

    Raises:
        EvaluationError: A number is out of range.
    """

    threads: int = option(1, "--threads THREADS", "of each model")
    """Threads of each model: one compares kernels rather than schedulers."""

    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that recognize speech at the same time."""

    timing_texts: int = 8
    """Number of texts that are timed, spread over the suite's lengths."""

    timing_runs: int = 6
    """Timed runs of each per model, each in a fresh process, in which opening and memory are
    measured, too; fewer, but three, where opening takes more than a minute."""

    teacher_forced_texts: int = 12
    """Number of texts on which language models are compared token by token, spread over the
    suite's lengths, at least 12 for intervals; 0 leaves it out."""

    keep_wav: bool = option(False, "--wav", "keep the audio also as WAV files beside the report")
    """Write the audio of both models also as WAV files beside the report, where there is an output
    directory. The page has its own, as Opus."""

    listening_test: bool = option(
        False,
        "--listening-test",
        "also write a page on which people tell both voices apart, blindly",
    )
    """Write `listening-test.html` beside the report; `join_listeners` reads what it saves."""

    seeds: tuple[int, ...] | None = option(
        None, "--seeds SEEDS", "noise seeds of each text, in place of the suite's"
    )
    """Seeds in place of the suite's."""

    any_language: bool = option(
        False, "--any-language", "also where a model states another language than the suite's"
    )
    """Evaluate also where a model states another language than the suite's."""

    recognizer: str | None = None
    """Recognizer in place of the one that the suite recommends: `NAME` or `NAME:MODEL`."""

    speaker: str | None = option(
        None, "--speaker NAME|ID", "of all texts, for a voice with several (in turn)"
    )
    """Name or id of the speaker of every text; by default texts go round a voice's speakers, and
    its default one is timed."""

    mos: str | None = option(
        None,
        "--mos FILE.onnx[@HZ]",
        "a network of yours that scores samples [1, T] at a rate, such as UTMOS",
    )
    """An ONNX file that scores speech, `FILE` or `FILE@HZ`; see `metrics/opinion.py`."""

    blame: bool = option(
        False,
        "--blame",
        "also find the component that did the damage, one compressed component at a time",
    )
    """Find the component that did the damage, by putting one compressed component at a time into
    the reference; the candidate needs its manifest."""

    port: Path | None = option(
        None,
        "--port DIR",
        "with --audio: folder of the original's recordings from the candidate's runtime, to "
        "separate the runtime's effect from compression's",
    )
    """Recordings of the original's weights in the candidate's runtime, where recordings are judged:
    what that runtime did is told apart from what compression did."""

    work: Path | None = option(
        None,
        "--work DIR",
        "keep all audio and transcripts there, for evaluations to come (in a cache, until the "
        "evaluation is done)",
    )
    """Folder of unfinished work, which stays; by default one in the user's cache, which goes when
    the evaluation is done."""

    execution: Execution = PROCESSOR
    """The place where models compute that are given by their specs."""

    timed_before: bool = False
    """Take the timings that `time_pair` left in `work`, in place of measuring."""

    kept: "KeptWorkers | None" = None
    """Keeps processes open for the stages and evaluations to come; None ends each with its
    stage."""

    timeout_s: float = 600.0
    """Longest time to speak or recognize one text, and to load a model."""

    # Without the current directory on the path: a file there must not stand in for a package.
    worker: tuple[str, ...] = (sys.executable, "-P", "-m", "tts_compress.evaluation.worker")
    """The program that runs a model or a recognizer; another environment's Python runs a system
    whose packages clash with ours."""

    progress: Progress = field(default_factory=default_progress)

    def __post_init__(self) -> None:
        numbers = ("threads", "jobs", "timing_texts", "timing_runs", "timeout_s")
        low = [f"{name} is {getattr(self, name)}" for name in numbers if getattr(self, name) <= 0]
        if low:
            raise EvaluationError(f"{', '.join(low)}; a positive number is needed")
        for name in ("threads", "jobs"):
            if getattr(self, name) > _MOST_THREADS:
                raise EvaluationError(
                    f"{name} is {getattr(self, name)}; at most {_MOST_THREADS} are accepted"
                )
        if self.teacher_forced_texts < 0:
            raise EvaluationError(
                f"teacher_forced_texts is {self.teacher_forced_texts}; 0 or a positive number is "
                "needed"
            )
