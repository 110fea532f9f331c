"""Times of contestants that take turns, and the memory of a fresh process."""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter, sleep
from typing import TypeVar

import numpy as np

from benchmarks.contestants import Contestant
from benchmarks.sentences import Sentence
from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.intervals import compare_times
from tts_compress.evaluation.process import Worker
from tts_compress.progress import Progress

Key = TypeVar("Key", bound=Hashable)

_REST_S = 0.05
"""Before each run: onnxruntime's threads wait for work by spinning for a while after theirs, and
would take a processor from the next contestant. Without a rest two threads look slower, FP32 by a
quarter and `int8` by two fifths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Threads and numbers of runs."""

    threads: tuple[int, ...]
    rounds: int
    warm_ups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Times of a contestant, and ratios of FP32's over them: higher is better."""

    min_ms: float
    median_ms: float
    ratio_min: float
    ratio_median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Speed):
    """Speed of one sentence at one number of threads."""

    sentence: str
    threads: int
    audio_s: float
    rtf: float
    """Median time over the length of the audio; lower is better."""

    interval: tuple[float, float] | None
    """95 % interval of the mean ratio (geometric) of runs that took turns; None for one run."""

    length_change: float
    """Change of the audio's length, relative to FP32's; ratios of unequal lengths mislead."""

    runs_ms: tuple[float, ...]


def take_turns(
    runs: Mapping[Key, Callable[[], float]],
    *,
    rounds: int,
    warm_ups: int = 3,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> dict[Key, list[float]]:
    """Return the results of every counted run, in milliseconds; `clocked` makes such a function.

    What disturbs one contestant disturbs all. Warm-ups do not count. `tell` is called after each
    round with the number done and the total.
    """
    times: dict[Key, list[float]] = {name: [] for name in runs}
    for turn in range(warm_ups + rounds):
        for name, run in runs.items():
            spent = run()
            if turn >= warm_ups:
                times[name].append(spent)
        tell(turn + 1, warm_ups + rounds)
    return times


def clocked(run: Callable[[], object]) -> Callable[[], float]:
    """Return a function that calls another one and returns the milliseconds that took."""

    def timed() -> float:
        start = perf_counter()
        run()
        return (perf_counter() - start) * 1e3

    return timed


def speed(own: Sequence[float], fp32: Sequence[float]) -> Speed:
    """Return the speed of a contestant from its times and those of FP32, in milliseconds."""
    return Speed(
        min_ms=min(own),
        median_ms=float(np.median(own)),
        ratio_min=min(fp32) / min(own),
        ratio_median=float(np.median(fp32) / np.median(own)),
    )


def summarize(
    sentence: str, threads: int, runs: tuple[list[float], float], fp32: tuple[list[float], float]
) -> Timing:
    """Return the timing of runs: milliseconds, and seconds of audio."""
    (own, audio_s), (reference, reference_s) = runs, fp32
    return Timing(
        sentence=sentence,
        threads=threads,
        audio_s=audio_s,
        rtf=float(np.median(own)) / 1e3 / audio_s,
        interval=compare_times(np.array(reference), np.array(own))[1],
        length_change=audio_s / reference_s - 1.0,
        runs_ms=tuple(own),
        **asdict(speed(own, reference)),
    )


def time_in_turns(
    contestants: Sequence[Contestant],
    sentences: Sequence[Sentence],
    sample_rate: int,
    plan: Plan,
    progress: Progress,
) -> list[list[Timing]]:
    """Return the timings of each contestant, which has a process; the first one is FP32."""
    timings: list[list[Timing]] = [[] for _ in contestants]
    for threads in plan.threads:
        with ExitStack() as stack:
            workers = [stack.enter_context(_new_worker(c, threads)) for c in contestants]
            for worker in workers:
                _open(worker, sentences[0], threads)
            for sentence in sentences:
                stage = partial(progress.advance, f"time {sentence.name}, threads: {threads}")
                times, seconds = _time(workers, sentence, plan, stage)
                runs = [(times[index], seconds[index] / sample_rate) for index in times]
                for own, run in zip(timings, runs, strict=True):
                    own.append(summarize(sentence.name, threads, run, runs[0]))
    return timings


def _time(
    workers: Sequence[Worker], sentence: Sentence, plan: Plan, tell: Callable[[int, int], None]
) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Return the milliseconds of all runs, and the samples of the last, by place."""
    samples: dict[int, float] = {}

    def run(index: int) -> float:
        sleep(_REST_S)
        response = workers[index].ask(**sentence.request)
        samples[index] = response["samples"]
        spent: float = response["ms"]
        return spent

    runs = {index: partial(run, index) for index in range(len(workers))}
    return take_turns(runs, rounds=plan.rounds, warm_ups=plan.warm_ups, tell=tell), samples


def measure_memory(contestant: Contestant, sentence: Sentence) -> int:
    """Return the peak memory of a fresh process that synthesizes one sentence on one thread."""
    with _new_worker(contestant, 1) as worker:
        _open(worker, sentence, 1)
        worker.ask(**sentence.request)
        peak: int = worker.ask("peak")["peak_bytes"]
        return peak


def _new_worker(contestant: Contestant, threads: int) -> Worker:
    command = (sys.executable, "-m", "benchmarks.worker")
    options = EvaluationOptions(threads=threads, worker=command)
    return Worker("model", str(contestant.path), options, shown=contestant.name)


def _open(worker: Worker, sentence: Sentence, threads: int) -> None:
    worker.ask("open", threads=threads, speaks=sentence.request["do"] == "speak")
