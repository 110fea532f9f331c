"""Speed and memory: every contestant in a process of its own, run by run in turns."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

from benchmarks.results import Memory, Timing, summarize
from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.process import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contestants import Contestant
    from benchmarks.sentences import Sentence
    from tts_compress.progress import Progress

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


def time_in_turns(
    contestants: Sequence[Contestant],
    sentences: Sequence[Sentence],
    sample_rate: int,
    plan: Plan,
    progress: Progress,
) -> list[list[Timing]]:
    """Return the timings of each contestant; the first is FP32, which ratios are against.

    Raises:
        EvaluationError: A contestant cannot be run.
    """
    found: list[list[Timing]] = [[] for _ in contestants]
    total = len(plan.threads) * len(sentences) * (plan.warm_ups + plan.rounds)
    done = 0
    for threads in plan.threads:
        with ExitStack() as stack:
            workers = [stack.enter_context(_new_worker(c, threads)) for c in contestants]
            for worker in workers:
                _open(worker, sentences[0], threads)
            for sentence in sentences:
                runs: list[list[float]] = [[] for _ in workers]
                seconds = [0.0] * len(workers)
                for turn in range(plan.warm_ups + plan.rounds):
                    # A disturbance of the machine for a while affects all of them.
                    for index, worker in enumerate(workers):
                        sleep(_REST_S)
                        answer = _speak(worker, sentence)
                        seconds[index] = answer["samples"] / sample_rate
                        if turn >= plan.warm_ups:
                            runs[index].append(answer["ms"])
                    done += 1
                    progress.advance("  time", done, total)
                measured = list(zip(runs, seconds, strict=True))
                for own, pair in zip(found, measured, strict=True):
                    own.append(summarize(sentence.name, threads, pair, measured[0]))
    return found


def measure_memory(contestant: Contestant, sentence: Sentence) -> Memory:
    """Return the memory of a fresh process that synthesizes one sentence once, on one thread.

    Raises:
        EvaluationError: The contestant cannot be run.
    """
    with _new_worker(contestant, 1) as worker:
        idle = _open(worker, sentence, 1)["idle_bytes"]
        _speak(worker, sentence)
        return Memory(idle_bytes=idle, peak_bytes=worker.ask("peak")["peak_bytes"])


def _new_worker(contestant: Contestant, threads: int) -> Worker:
    command = (sys.executable, "-m", "benchmarks.worker")
    options = EvaluationOptions(threads=threads, worker=command)
    return Worker("model", str(contestant.path), options, shown=contestant.name)


def _open(worker: Worker, sentence: Sentence, threads: int) -> dict[str, int]:
    return worker.ask("open", threads=threads, speaks=sentence.request["do"] == "speak")


def _speak(worker: Worker, sentence: Sentence) -> dict[str, float]:
    return worker.ask(**sentence.request)
