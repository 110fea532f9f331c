"""What a model costs to run: latency, real-time factor, memory, time to open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.bootstrap import compare_times
from tts_compress.report.evaluation import (
    Latency,
    LatencyComparison,
    LoadTime,
    Memory,
    Pair,
    Rtf,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from tts_compress.evaluation.options import EvaluationOptions
    from tts_compress.evaluation.synthesize import Speaker

__all__ = [
    "Cost",
    "Timings",
    "as_timings",
    "choose_texts",
    "compare_timings",
    "measure_cost",
    "speed_ratio",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Both models' costs on one machine."""

    latency: LatencyComparison
    rtf: Pair[Rtf]
    memory: Pair[Memory]
    load: Pair[LoadTime]


@dataclass(frozen=True, slots=True)
class Timings:
    """Of one model, shape `[texts, runs]`, in seconds."""

    spent: npt.NDArray[np.float64]
    audio: npt.NDArray[np.float64]


def choose_texts(texts: Sequence[str], most: int) -> list[str]:
    """Return up to `most` texts, from the shortest to the longest in even steps."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))
    steps = np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int)
    return [ordered[index] for index in steps]


def measure_cost(
    reference: Speaker, candidate: Speaker, texts: Sequence[str], options: EvaluationOptions
) -> Cost:
    """Time both models, run by run in turns, then the memory of each in a fresh process.

    Raises:
        EvaluationError: A model's process failed, or spoke no sound at all.
    """
    chosen = choose_texts(texts, options.timing_texts)
    timings, modules = _take_turns((reference, candidate), chosen, options)
    for speaker, timing in zip((reference, candidate), timings, strict=True):
        if not timing.audio.all():
            raise EvaluationError(f"'{speaker.shown}' speaks nothing in its own runtime")
    memory, load = zip(
        *(
            _fresh_process(speaker, chosen[-1], imports, options)
            for speaker, imports in zip((reference, candidate), modules, strict=True)
        ),
        strict=True,
    )
    return Cost(
        latency=compare_timings(timings, options),
        rtf=_pair([_rtf(timing) for timing in timings]),
        memory=_pair(memory),
        load=_pair(load),
    )


def _take_turns(
    speakers: Sequence[Speaker], texts: Sequence[str], options: EvaluationOptions
) -> tuple[list[Timings], list[list[str]]]:
    """Return timings, and the modules each model's process has imported."""
    # What disturbs the machine for a while disturbs both models, because they take turns.
    with speakers[0].start(options) as first, speakers[1].start(options) as second:
        workers = (first, second)
        for worker in workers:
            worker.ask("open_runtime", threads=options.threads, modules=[])
            for text in (texts[0], texts[-1]):
                worker.ask("speak", text=text)
        answers: list[list[list[dict[str, Any]]]] = [[], []]
        for done, text in enumerate(texts):
            options.progress.advance("time", done, len(texts))
            turns = [
                [w.ask("speak", text=text) for w in workers] for _ in range(options.timing_runs)
            ]
            for own, runs in zip(answers, zip(*turns, strict=True), strict=True):
                own.append(list(runs))
        options.progress.advance("time", len(texts), len(texts))
        modules = [worker.ask("inspect")["modules"] for worker in workers]
    return [as_timings(own) for own in answers], modules


def _fresh_process(
    speaker: Speaker, text: str, modules: list[str], options: EvaluationOptions
) -> tuple[Memory, LoadTime]:
    with speaker.start(options) as worker:
        opened = worker.ask("open_runtime", threads=options.threads, modules=modules)
        worker.ask("speak", text=text)
        peak = worker.ask("inspect")["peak_bytes"]
    return (
        Memory(peak_bytes=peak, idle_bytes=opened["idle_bytes"]),
        LoadTime(open_ms=opened["open_s"] * 1e3),
    )


def as_timings(answers: Sequence[Sequence[Mapping[str, Any]]]) -> Timings:
    """Return the timings in a worker's answers, by text and run."""
    return Timings(
        np.array([[run["seconds"] for run in runs] for runs in answers]),
        np.array([[run["audio_s"] for run in runs] for runs in answers]),
    )


def speed_ratio(slow: Timings, fast: Timings) -> float:
    """Return the median over texts of the ratio of each text's median run."""
    ratios = np.median(slow.spent, axis=1) / np.median(fast.spent, axis=1)
    return float(np.median(ratios))


def compare_timings(timings: Sequence[Timings], options: EvaluationOptions) -> LatencyComparison:
    """Return the latencies of reference and candidate."""
    reference, candidate = (timing.spent for timing in timings)
    ratio, interval = compare_times(reference, candidate)
    return LatencyComparison(
        reference=_latency(reference),
        candidate=_latency(candidate),
        ratio=ratio,
        interval=interval,
        p50_ratio=speed_ratio(*timings),
        threads=options.threads,
        texts=len(reference),
        runs=options.timing_runs,
    )


def _latency(spent: npt.NDArray[np.float64]) -> Latency:
    return Latency(
        mean_ms=float(np.exp(np.log(spent).mean())) * 1e3,
        p50_ms=float(np.median(spent)) * 1e3,
        p95_ms=float(np.quantile(spent, 0.95)) * 1e3,
        min_ms=float(spent.min(axis=1).mean()) * 1e3,
    )


def _rtf(timing: Timings) -> Rtf:
    factors = timing.spent / timing.audio
    return Rtf(p50=float(np.median(factors)), p95=float(np.quantile(factors, 0.95)))


def _pair(values: Sequence[Any]) -> Pair[Any]:
    reference, candidate = values
    return Pair(reference=reference, candidate=candidate)
