"""Cost of running a model: size, latency, first sound, real-time factor, memory, time to open."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from tts_compress.errors import EvaluationError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import compare_times
from tts_compress.evaluation.metric import (
    Figure,
    Headline,
    Metric,
    Pair,
    Record,
    Row,
    Trend,
    ratio_row,
    trend,
)
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import Evaluation
from tts_compress.evaluation.stages import Timings

T = TypeVar("T")

_FASTER = ("faster", "slower")
_SOONER = ("sooner", "later")
_BYTES = ("peak_bytes", "idle_bytes", "model_bytes")


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

    runs_ms: tuple[tuple[float, ...], ...] = ()
    """Every run, shape `[texts, processes]`; empty in older reports."""


class LatencyComparison(Record):
    """Latency of interleaved runs in several pairs of processes."""

    reference: Latency
    candidate: Latency
    ratio: float
    """`reference.mean_ms` over `candidate.mean_ms`: above 1 the candidate is faster."""

    interval: tuple[float, float] | None
    """95 % interval of `ratio` over processes and texts; None of too few processes."""

    p50_ratio: float
    """Reference over candidate, median over texts of the ratio of each text's median run."""

    threads: int
    texts: int
    runs: int
    """Timed runs per text and model, each in a process of its own; in older reports
    all in one."""

    @property
    def words(self) -> str:
        """The ratio, such as `1.6x faster`."""
        return formatting.times(self.ratio, "faster", "slower")

    @property
    def interval_in_words(self) -> str:
        """`95 % interval`, and that of the number in `words`; empty where there is none."""
        return _interval_in_words(self.ratio, self.interval)

    @property
    def change(self) -> str:
        """The words with their interval in brackets, where there is one."""
        return _with_interval(self.words, self.interval_in_words)

    @property
    def trend(self) -> Trend:
        """Direction of the speed: where its interval is known, only if that excludes 1."""
        interval = self.interval if self.interval_in_words else None
        low, high = interval or (self.ratio, self.ratio)
        return trend(low, high, 1)


def _interval_in_words(ratio: float | None, interval: tuple[float, float] | None) -> str:
    shown = formatting.times_interval(ratio, interval)
    return "" if shown == formatting.MISSING else f"95 % interval {shown}"


def _with_interval(change: str, interval: str) -> str:
    return f"{change} ({interval})" if interval else change


class Rtf(Record):
    """Real-time factor: synthesis seconds per second of audio; below 1 is faster than speech."""

    p50: float
    p95: float


class Memory(Record):
    """Resident memory of fresh processes that load the model and speak; medians."""

    peak_bytes: int
    idle_bytes: int
    """Memory of the same processes before the model is loaded: Python and the runtime."""

    model_bytes: int
    """The model's own share: the peak above that; in older reports the difference."""

    growth: tuple[tuple[int, int], ...] = ()
    """Characters of texts of growing length that one process spoke, and the model's own share of
    its peak by then, bytes; empty in older reports."""

    @model_validator(mode="before")
    @classmethod
    def _has_own_share(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and "model_bytes" not in content:
            with suppress(KeyError, TypeError):  # told by the fields
                return {**content, "model_bytes": content["peak_bytes"] - content["idle_bytes"]}
        return content


class MemoryComparison(Pair[Memory]):
    """Memory of both models, whose processes took turns."""

    ratio_interval: tuple[float, float] | None = None
    """95 % interval of the ratio of the models' own shares, reference over candidate, over pairs of
    processes, as that of times; None of too few."""

    processes: int = 1
    """Fresh processes of each model."""

    @property
    def ratio(self) -> float | None:
        """Median own share of the reference over the candidate's; None where that has none."""
        before, after = self.reference.model_bytes, self.candidate.model_bytes
        return before / after if after > 0 else None


class Throughput(Pair[float]):
    """Seconds of audio that a second of synthesis makes."""

    ratio: float | None = None
    """The candidate's over the reference's: geometric mean of the runs."""

    ratio_interval: tuple[float, float] | None = None
    """Its 95 % interval, as that of times; None of too few processes."""


class LoadTime(Record):
    """Time to open the model in processes whose imports are done, milliseconds; medians."""

    open_ms: float
    """In a fresh process; only those whose files the system was asked to drop from its cache."""

    is_cold: bool = False
    """None of its files were in the system's cache then, in any of the processes."""

    warm_ms: float | None = None
    """In fresh processes while the files are in the cache; None where all were asked to drop them.
    """


def load_label(load: Pair[LoadTime]) -> str:
    """Return the words for the first opening."""
    if load.reference.warm_ms is None:
        return "Load time"
    cold = load.reference.is_cold and load.candidate.is_cold
    return "Load time, cold" if cold else "Load time, fresh process"


def compare_timings(
    before: Timings, after: Timings, options: EvaluationOptions
) -> LatencyComparison:
    """Return the latencies of reference and candidate."""
    reference, candidate = np.array(before.spent), np.array(after.spent)
    ratio, interval = compare_times(reference, candidate)
    return LatencyComparison(
        reference=_latency(reference),
        candidate=_latency(candidate),
        ratio=ratio,
        interval=interval,
        p50_ratio=float(np.median(np.median(reference, axis=1) / np.median(candidate, axis=1))),
        threads=options.threads,
        texts=len(reference),
        runs=reference.shape[1],
    )


def _latency(spent: npt.NDArray[np.float64]) -> Latency:
    return Latency(
        mean_ms=float(np.exp(np.log(spent).mean())) * 1e3,
        p50_ms=float(np.median(spent)) * 1e3,
        p95_ms=float(np.quantile(spent, 0.95)) * 1e3,
        min_ms=float(spent.min(axis=1).mean()) * 1e3,
        runs_ms=tuple(tuple(row) for row in (spent * 1e3).round(4).tolist()),
    )


def real_time_factor(timings: Timings) -> Rtf:
    """Return synthesis seconds per second of audio, over all runs that returned any."""
    spent, audio = np.array(timings.spent), np.array(timings.audio)
    factors = spent[audio > 0] / audio[audio > 0]
    return Rtf(p50=float(np.median(factors)), p95=float(np.quantile(factors, 0.95)))


def _throughput(run: Run) -> Throughput:
    sides = [(np.array(t.audio, float), np.array(t.spent)) for t in run.timings]
    reference, candidate = (float(audio.sum() / spent.sum()) for audio, spent in sides)
    heard = np.all([(audio > 0).all(axis=1) for audio, _ in sides], axis=0)
    if not heard.any():
        return Throughput(reference=reference, candidate=candidate)
    # Seconds for a second of audio: one that speaks longer has more to make.
    ratio, interval = compare_times(*(spent[heard] / audio[heard] for audio, spent in sides))
    return Throughput(
        reference=reference, candidate=candidate, ratio=ratio, ratio_interval=interval
    )


def _throughput_rows(value: Throughput, _: object) -> list[Row]:
    ratio, interval = value.ratio, value.ratio_interval
    if ratio is None and value.reference:  # an older report
        ratio = value.candidate / value.reference
    before, after = (
        f"{rate:.4g} s of audio per s" if formatting.is_finite(rate) else formatting.MISSING
        for rate in (value.reference, value.candidate)
    )
    change = formatting.times(ratio, "higher", "lower")
    return [
        Row(
            label="Throughput",
            reference=before,
            candidate=after,
            change=_with_interval(change, _interval_in_words(ratio, interval)),
            trend=trend(*(interval or (ratio, ratio)), 1),
        )
    ]


def _of_each(measure: Callable[[Timings], T], run: Run) -> Pair[T]:
    """Return a metric that is measured of each model alone."""
    reference, candidate = run.timings
    return Pair(reference=measure(reference), candidate=measure(candidate))


def _memory(run: Run) -> MemoryComparison | None:
    before, after = (timings.fresh for timings in run.timings)
    if not all(process.peak_bytes for process in (*before, *after)):  # as on Windows
        return None
    reference, candidate = map(_own_memory, run.timings)
    shares = np.array(
        [[process.model_bytes for process in fresh] for fresh in (before, after)], float
    )
    return MemoryComparison(
        reference=reference,
        candidate=candidate,
        ratio_interval=compare_times(*shares)[1] if shares.min() > 0 else None,
        processes=len(before),
    )


def _own_memory(timings: Timings) -> Memory:
    middle = {
        name: int(median(getattr(process, name) for process in timings.fresh)) for name in _BYTES
    }
    growth = tuple((length, peak - middle["idle_bytes"]) for length, peak in timings.growth)
    return Memory(**middle, growth=growth)


def _memory_rows(memory: MemoryComparison, _: object) -> list[Row]:
    show, words = formatting.bytes_of, ("less", "more")
    row = _field_row("Memory of the model", "model_bytes", show, words, memory)
    whole = _field_row("Peak memory", "peak_bytes", show, words, memory)
    interval = _interval_in_words(memory.ratio, memory.ratio_interval)
    detail = "; ".join(filter(None, (f"{row.reference} to {row.candidate}", interval)))
    headline = Headline(row.change, detail, f"of the whole process {whole.change}")
    change = _with_interval(row.change, interval)
    ends = memory.ratio_interval or (memory.ratio, memory.ratio)
    return [replace(row, change=change, trend=trend(*ends, 1), headline=headline), whole]


def _load_time(timings: Timings) -> LoadTime:
    warm = [process.open_s for process in timings.fresh if process.is_warm]
    first = [process for process in timings.fresh if not process.is_warm]
    return LoadTime(
        open_ms=median(process.open_s for process in first) * 1e3,
        is_cold=all(process.is_cold for process in first),
        warm_ms=median(warm) * 1e3 if warm else None,
    )


def _load_rows(load: Pair[LoadTime], _: object) -> list[Row]:
    show, label = formatting.milliseconds, load_label(load)
    rows = [_field_row(label, "open_ms", show, _FASTER, load)]
    if load.reference.warm_ms is not None and load.candidate.warm_ms is not None:
        rows.append(_field_row("Load time, warm", "warm_ms", show, _FASTER, load))
    return rows


def _size(run: Run) -> Size:
    before, after = (
        sum(path.stat().st_size for path in subject.files.weights) for subject in run.subjects
    )
    if not after:
        raise EvaluationError(f"'{run.subjects[1].files.weights[0]}' is an empty file")
    return Size(reference_bytes=before, candidate_bytes=after, ratio=before / after)


def _size_rows(size: Size, _: object) -> list[Row]:
    values = (size.reference_bytes, size.candidate_bytes)
    row = ratio_row("Size on disk", values, formatting.bytes_of, ("smaller", "larger"))
    judgement = {"better": "saves space", "worse": "takes more space"}.get(row.trend, "no change")
    detail = f"{row.reference} to {row.candidate}"
    return [replace(row, headline=Headline(row.change, detail, judgement))]


def _latency_rows(latency: LatencyComparison, evaluation: Evaluation) -> list[Row]:
    factor = evaluation.rtf.candidate.p50
    before, after = (
        formatting.milliseconds(model.mean_ms) for model in (latency.reference, latency.candidate)
    )
    pace = "faster" if factor < 1 else "not faster"
    judgement = (
        f"real-time factor {formatting.real_time_factor(factor)}, {pace} than speech"
        if formatting.is_finite(factor)
        else "real-time factor not measured"
    )
    detail = "; ".join(filter(None, (f"{before} to {after}, mean", latency.interval_in_words)))
    return [
        Row(
            label="Latency, mean",
            reference=before,
            candidate=after,
            change=latency.change,
            trend=latency.trend,
            headline=Headline(latency.words, detail, judgement),
        ),
        _field_row("Latency, p95", "p95_ms", formatting.milliseconds, _FASTER, latency),
    ]


def _field_row(
    label: str,
    field: str,
    show: Callable[[float | None], str],
    words: tuple[str, str],
    pair: Pair[Any] | LatencyComparison,
) -> Row:
    """Return the row of one field of a pair."""
    values = (getattr(pair.reference, field), getattr(pair.candidate, field))
    return ratio_row(label, values, show, words)


def _first_sounds(run: Run) -> LatencyComparison:
    """Return the times until the first sound of interleaved runs."""
    timings = [t.model_copy(update={"spent": t.first or t.spent}) for t in run.timings]
    return compare_timings(timings[0], timings[1], run.options)


def _first_sound_rows(first: LatencyComparison, _: object) -> list[Row]:
    show = formatting.milliseconds
    mean = _field_row("First sound, mean", "mean_ms", show, _SOONER, first)
    tail = _field_row("First sound, p95", "p95_ms", show, _SOONER, first)
    change = _with_interval(mean.change, first.interval_in_words)
    return [replace(mean, change=change, trend=first.trend), tail]


METRICS = (
    Metric(
        name="size",
        group="cost",
        result=Size,
        compute=_size,
        rows=_size_rows,
        figures={
            "ratio": Figure("size on disk, reference over compressed"),
            "candidate_bytes": Figure("size on disk", formatting.bytes_of),
        },
    ),
    Metric(
        name="latency",
        group="cost",
        result=LatencyComparison,
        compute=lambda run: compare_timings(run.timings[0], run.timings[1], run.options),
        rows=_latency_rows,
        figures=dict.fromkeys(("ratio", "interval"), Figure("speed, times the reference's")),
        terms={
            "Latency, mean": "the geometric mean of all timed runs: each counts alike, however "
            "long its text. Runs of the two models take turns, in several processes of each. The "
            "change is the ratio of the two means, with its 95 % interval over processes and "
            "texts. With one inside it, the runs show no difference. A player is first heard "
            "after the latency of its first text: piper speaks by sentence.",
        },
    ),
    Metric(
        name="rtf",
        group="cost",
        result=Pair[Rtf],
        compute=partial(_of_each, real_time_factor),
        rows=lambda rtf, _: [
            _field_row("Real-time factor", "p50", formatting.real_time_factor, _FASTER, rtf)
        ],
        terms={
            "Real-time factor": "synthesis seconds per second of audio; below 1 is faster than "
            "speech.",
        },
    ),
    Metric(
        name="throughput",
        group="cost",
        result=Throughput,
        optional=True,
        compute=_throughput,
        rows=_throughput_rows,
    ),
    Metric(
        name="memory",
        group="cost",
        result=MemoryComparison,
        optional=True,
        compute=_memory,
        rows=_memory_rows,
        figures={
            "candidate.model_bytes": Figure("memory of the model itself", formatting.bytes_of)
        },
        terms={
            "Memory of the model": "what a fresh process that opens the model and speaks the "
            "longest timed text takes at most, less what Python and the runtime had before; peak "
            "memory has both. Medians of several processes.",
        },
    ),
    Metric(
        name="load",
        group="cost",
        result=Pair[LoadTime],
        compute=partial(_of_each, _load_time),
        rows=_load_rows,
        terms={
            "Load time": "time to open the model in a process whose imports are done: cold, with "
            "none of its files in the system's cache; in a fresh process, where the system does "
            "not say that they are not; and warm, in one whose files are in that cache. Medians.",
        },
    ),
    Metric(
        name="first_audio",
        group="cost",
        result=LatencyComparison,
        optional=True,
        compute=_first_sounds,
        rows=_first_sound_rows,
        figures={
            "candidate.p95_ms": Figure("time until the first sound, p95", formatting.milliseconds),
            **dict.fromkeys(("ratio", "interval"), Figure("first sound, times as soon")),
        },
        terms={
            "First sound": "time until the first chunk of a voice in stages (`export --stream`), "
            "the first sentence of piper, or the whole text of other players.",
        },
    ),
)
