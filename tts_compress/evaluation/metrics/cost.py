"""Cost of running a model: size, latency, real-time factor, memory, time to open."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tts_compress.errors import EvaluationError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.bootstrap import compare_times
from tts_compress.evaluation.metric import (
    Headline,
    Metric,
    Pair,
    Record,
    Row,
    Term,
    Trend,
    ratio_row,
    ratio_trend,
)
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import Evaluation
from tts_compress.evaluation.stages import Timings, time_models

T = TypeVar("T")


class Size(Record):
    """Bytes on disk of the model files."""

    reference_bytes: int
    candidate_bytes: int
    ratio: float
    """Reference over candidate: how many times smaller the candidate is."""


class Latency(Record):
    """Synthesis time of one text in the system's own runtime, after warm-up, milliseconds."""

    mean_ms: float
    """Geometric mean of all runs."""

    p50_ms: float
    p95_ms: float
    min_ms: float
    """Over the whole suite when every text takes its fastest run: total over number of texts."""


class LatencyComparison(Record):
    """Latency of interleaved runs, each model in a process of its own."""

    reference: Latency
    candidate: Latency
    ratio: float
    """`reference.mean_ms` over `candidate.mean_ms`: above 1 the candidate is faster."""

    interval: tuple[float, float] | None
    """95 % bootstrap interval of `ratio`, resampling the pairs of runs that took turns. None for a
    single pair."""

    p50_ratio: float
    """Reference over candidate, median over texts of the ratio of each text's median run."""

    threads: int
    texts: int
    runs: int
    """Timed runs per text and model."""


class Rtf(Record):
    """Real-time factor: synthesis seconds per second of audio; below 1 is faster than speech."""

    p50: float
    p95: float


class Memory(Record):
    """Resident memory of a fresh process that loads the model and speaks."""

    peak_bytes: int
    idle_bytes: int
    """Memory of the same process before the model is loaded."""


class LoadTime(Record):
    """Time to open the model in a fresh process whose imports are done, milliseconds."""

    open_ms: float


def compare_timings(
    before: Timings, after: Timings, options: EvaluationOptions
) -> LatencyComparison:
    """Return the latencies of reference and candidate."""
    reference, candidate = before.spent, after.spent
    ratio, interval = compare_times(reference, candidate)
    return LatencyComparison(
        reference=_latency(reference),
        candidate=_latency(candidate),
        ratio=ratio,
        interval=interval,
        p50_ratio=float(np.median(np.median(reference, axis=1) / np.median(candidate, axis=1))),
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


def real_time_factor(timings: Timings) -> Rtf:
    """Return synthesis seconds per second of audio, over all runs."""
    factors = timings.spent / timings.audio
    return Rtf(p50=float(np.median(factors)), p95=float(np.quantile(factors, 0.95)))


def _timings(run: Run) -> tuple[Timings, Timings]:
    models = (run.models[0].ref, run.models[1].ref)
    return time_models(models, [item.text for item in run.suite.utterances], run.options)


def _latencies(run: Run) -> LatencyComparison:
    reference, candidate = run.once(_timings)
    return compare_timings(reference, candidate, run.options)


def _of_each(measure: Callable[[Timings], T]) -> Callable[[Run], Pair[T]]:
    """Return the computation of a metric that is measured of each model alone."""

    def compute(run: Run) -> Pair[T]:
        reference, candidate = run.once(_timings)
        return Pair(reference=measure(reference), candidate=measure(candidate))

    return compute


def _memory(timings: Timings) -> Memory:
    return Memory(peak_bytes=timings.peak_bytes, idle_bytes=timings.idle_bytes)


def _load(timings: Timings) -> LoadTime:
    return LoadTime(open_ms=timings.open_s * 1e3)


def _size(run: Run) -> Size:
    before, after = (
        sum(path.stat().st_size for path in subject.files.weights) for subject in run.models
    )
    if not after:
        raise EvaluationError(f"'{run.models[1].files.weights[0]}' is an empty file")
    return Size(reference_bytes=before, candidate_bytes=after, ratio=before / after)


@dataclass(frozen=True, slots=True)
class Speed:
    """The ratio of two latencies in words, as a report shows it."""

    latency: LatencyComparison

    @property
    def words(self) -> str:
        """The ratio, such as `1.6x faster`."""
        return formatting.times(self.latency.ratio, "faster", "slower")

    @property
    def interval(self) -> str:
        """`95 % interval`, and that of the number in `words`; empty where there is none."""
        shown = formatting.times_interval(self.latency.ratio, self.latency.interval)
        return "" if shown == formatting.MISSING else f"95 % interval {shown}"

    @property
    def change(self) -> str:
        """The words with their interval in brackets, where there is one."""
        return f"{self.words} ({self.interval})" if self.interval else self.words

    @property
    def trend(self) -> Trend:
        """Direction of the speed: where its interval is known, only if that excludes 1."""
        low, high = self.latency.interval or (0.0, 0.0)
        if not self.interval:
            return ratio_trend(self.latency.ratio)
        if low > 1:
            return "better"
        return "worse" if high < 1 else "same"


def _size_rows(size: Size, _: object) -> list[Row]:
    values = (size.reference_bytes, size.candidate_bytes)
    row = ratio_row("Size on disk", values, formatting.bytes_of, ("smaller", "larger"))
    judgement = {"better": "saves space", "worse": "takes more space"}.get(row.trend, "no change")
    detail = f"{row.reference} to {row.candidate}"
    return [replace(row, headline=Headline(row.change, detail, judgement))]


def _latency_rows(latency: LatencyComparison, evaluation: Evaluation) -> list[Row]:
    speed, factor = Speed(latency), evaluation.rtf.candidate.p50
    times = [
        formatting.milliseconds(model.mean_ms) for model in (latency.reference, latency.candidate)
    ]
    pace = "faster" if factor < 1 else "not faster"
    judgement = (
        f"real-time factor {formatting.real_time_factor(factor)}, {pace} than speech"
        if formatting.is_finite(factor)
        else "real-time factor not measured"
    )
    detail = "; ".join(filter(None, (f"{times[0]} to {times[1]}, mean", speed.interval)))
    tails = (latency.reference.p95_ms, latency.candidate.p95_ms)
    return [
        Row(
            label="Latency, mean",
            reference=times[0],
            candidate=times[1],
            change=speed.change,
            trend=speed.trend,
            headline=Headline(speed.words, detail, judgement),
        ),
        ratio_row("Latency, p95", tails, formatting.milliseconds, ("faster", "slower")),
    ]


def _ratio_rows(
    label: str, field: str, show: Callable[[float | None], str], *words: str
) -> Callable[[Pair[Any], object], list[Row]]:
    """Return the row of one field of a pair."""

    def rows(pair: Pair[Any], _: object) -> list[Row]:
        values = (getattr(pair.reference, field), getattr(pair.candidate, field))
        return [ratio_row(label, values, show, (words[0], words[1]))]

    return rows


_LATENCY = Term(
    name="Latency, mean",
    meaning="the geometric mean of all timed runs: each counts alike, however long its text. "
    "Runs of the two models take turns, each in a process of its own. The change is the ratio of "
    "the two means, and the interval holds 95 % of what resampling the pairs of runs gives. With "
    "one inside it, the runs show no difference.",
)
_RTF = Term(
    name="Real-time factor",
    meaning="synthesis seconds per second of audio; below 1 is faster than speech.",
)

METRICS = (
    Metric(
        name="size",
        group="cost",
        result=Size,
        compute=_size,
        rows=_size_rows,
    ),
    Metric(
        name="latency",
        group="cost",
        result=LatencyComparison,
        compute=_latencies,
        rows=_latency_rows,
        terms=(_LATENCY,),
    ),
    Metric(
        name="rtf",
        group="cost",
        result=Pair[Rtf],
        compute=_of_each(real_time_factor),
        rows=_ratio_rows(
            "Real-time factor", "p50", formatting.real_time_factor, "faster", "slower"
        ),
        terms=(_RTF,),
    ),
    Metric(
        name="memory",
        group="cost",
        result=Pair[Memory],
        compute=_of_each(_memory),
        rows=_ratio_rows("Peak memory", "peak_bytes", formatting.bytes_of, "less", "more"),
    ),
    Metric(
        name="load",
        group="cost",
        result=Pair[LoadTime],
        compute=_of_each(_load),
        rows=_ratio_rows("Load time", "open_ms", formatting.milliseconds, "faster", "slower"),
    ),
)
