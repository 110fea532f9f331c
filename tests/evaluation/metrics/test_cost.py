"""Latency and memory; never absolute times."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.evaluation.subjects import make_subject
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.intervals import FEWEST_PROCESSES
from tts_compress.evaluation.metric import find_metrics
from tts_compress.evaluation.metrics.cost import METRICS, compare_timings, real_time_factor
from tts_compress.evaluation.stages import FreshProcess, Timings, choose_texts, time_models
from tts_compress.models.execution import Execution


def _timings(seconds: list[list[float]]) -> Timings:
    return Timings(spent=tuple(map(tuple, seconds)), audio=((1.0,),) * len(seconds))


def test_texts_are_spread_over_lengths() -> None:
    """The shortest and the longest are among them; none occurs twice."""
    texts = ["x" * length for length in (9, 3, 5, 3, 1, 7)]
    assert [len(text) for text in choose_texts(texts, 3)] == [1, 5, 9]
    assert [len(text) for text in choose_texts(texts, 8)] == [1, 3, 5, 7, 9]
    assert [len(text) for text in choose_texts(texts, 1)] == [1]


def test_the_ratio_is_the_median_over_texts_of_ratios_of_medians() -> None:
    """One long text, or one disturbed run, does not decide."""
    reference = _timings([[2.0, 2.0, 9.0], [4.0, 4.0, 4.0], [90.0, 90.0, 90.0]])
    candidate = _timings([[1.0, 1.0, 1.0], [1.0, 1.0, 8.0], [90.0, 90.0, 90.0]])
    found = compare_timings(reference, candidate, EvaluationOptions(timing_runs=3))
    assert found.p50_ratio == 2.0
    assert (found.texts, found.runs, found.threads) == (3, 3, 1)
    assert pytest.approx(found.reference.min_ms) == 1000.0 * (2 + 4 + 90) / 3
    assert found.reference.p50_ms == 4000.0
    assert pytest.approx(found.reference.p95_ms) == 90_000.0


def test_ratio_and_interval_are_of_the_means_that_are_shown() -> None:
    """Geometric means of all runs; the median over texts would show no change."""
    reference = _timings([[0.1, 0.1, 0.1], [0.2, 0.3, 0.1], [0.4, 0.5, 0.2]])
    candidate = _timings([[0.1, 0.1, 0.1], [0.2, 0.3, 0.1], [0.8, 1.5, 0.2]])
    found = compare_timings(reference, candidate, EvaluationOptions(timing_runs=3))
    before, after = found.reference.mean_ms, found.candidate.mean_ms
    assert before is not None
    assert after is not None
    assert found.ratio is not None
    assert found.interval is not None
    assert before == pytest.approx(1e3 * np.prod(reference.spent) ** (1 / 9))
    assert found.ratio == pytest.approx(before / after)
    assert found.ratio == pytest.approx(6 ** (-1 / 9))
    assert found.interval[0] < found.ratio < found.p50_ratio == 1.0 < found.interval[1]


def test_load_times_are_medians_and_cold_only_where_every_process_was() -> None:
    """Processes whose files stayed in the cache are apart; where there are none, one row is."""

    def rows(*sides: list[FreshProcess]) -> list[tuple[str, str, str]]:
        timings = [_timings([[1.0]]).model_copy(update={"fresh": tuple(side)}) for side in sides]
        load = next(metric for metric in METRICS if metric.name == "load")
        shown = load.table_rows(load.compute(SimpleNamespace(timings=timings)), None)
        return [(row.label, row.reference, row.candidate) for row in shown]

    cold, cached = (
        [FreshProcess(open_s=s, is_cold=is_cold) for s in (0.4, 0.8, 9.0)]
        for is_cold in (True, False)
    )
    warm = [FreshProcess(open_s=s, is_warm=True) for s in (0.1, 0.2, 0.3)]
    again = ("Load time, warm", "200 ms", "200 ms")
    both = [*warm, *cold]
    assert rows(both, both) == [("Load time, cold", "800 ms", "800 ms"), again]
    partly = [*warm, *cold[:2], cached[2]]
    assert rows(both, partly) == [("Load time, fresh process", "800 ms", "800 ms"), again]
    assert rows(partly, both) == rows(both, partly)
    older = [FreshProcess(open_s=0.5)]
    assert rows(older, older) == [("Load time", "500 ms", "500 ms")]


def test_memory_that_grows_with_the_text_is_the_models_own() -> None:
    sizes = ((900, 9_000), (1_000, 12_000), (5_000, 9_500))
    fresh = tuple(FreshProcess(idle_bytes=idle, peak_bytes=peak) for idle, peak in sizes)
    grown = _timings([[1.0]]).model_copy(
        update={"fresh": fresh, "growth": ((5, 4_000), (9, 8_000))}
    )
    memory = next(metric for metric in METRICS if metric.name == "memory")
    found = memory.compute(SimpleNamespace(timings=(grown, grown)))
    assert found.candidate.growth == ((5, 3_000), (9, 7_000))
    assert found.candidate.model_bytes == 8_100, "not the difference of the other medians"


def test_memory_that_one_process_does_not_tell_is_not_compared() -> None:
    told, less, silent = (
        _timings([[1.0]]).model_copy(update={"fresh": (FreshProcess(peak_bytes=n),) * 6})
        for n in (9_000, 4_500, 0)
    )
    memory = _metric("memory")
    found = memory.compute(SimpleNamespace(timings=(told, less)))
    assert (found.reference.peak_bytes, found.ratio_interval) == (9_000, pytest.approx((2.0, 2.0)))
    unsure = found.model_copy(update={"ratio_interval": (0.9, 4.4)})
    trends = [memory.table_rows(value, None)[0].trend for value in (found, unsure)]
    assert trends == ["better", "same"]
    assert memory.compute(SimpleNamespace(timings=(told, silent))) is None


def test_the_real_time_factor_is_synthesis_over_audio() -> None:
    """Half a second for two seconds is 0.25."""
    timings = Timings(spent=((0.5, 0.1),), audio=((2.0, 0.0),))
    assert real_time_factor(timings).p50 == 0.25, "a run without sound has none"


@pytest.mark.slow
def test_models_take_turns_in_several_processes(
    fake_spec: Callable[..., str], fast_options: EvaluationOptions, tmp_path: Path
) -> None:
    """Text by text after warming up; they take turns at speaking first, too."""
    log = tmp_path / "log"
    specs = (
        fake_spec(name, log=str(log), tag=name, sleep=sleep)
        for name, sleep in (("ref", 0.0), ("slow", 0.2))
    )
    first, second = (make_subject(spec) for spec in specs)
    options = replace(fast_options, timing_runs=3)
    reference, candidate = time_models((first, second), ["b", "aa"], options)
    forwards, backwards = (
        [f"{one}:aa", f"{two}:aa", f"{one}:b", f"{two}:b", f"{two}:aa", f"{one}:aa"]
        for one, two in (("ref", "slow"), ("slow", "ref"))
    )
    growing = ["ref:aa", "ref:b", "slow:aa", "slow:b"]  # at the same time
    lines = log.read_text().splitlines()
    assert sorted(lines[:4]) == growing
    assert lines[4:] == [*forwards, *backwards, *forwards]
    found = compare_timings(reference, candidate, options)
    assert (found.texts, found.runs) == (2, 3)
    assert found.interval is not None
    assert found.interval[1] < 1.0
    assert found.candidate.min_ms >= 200.0
    assert real_time_factor(candidate).p50 > real_time_factor(reference).p50
    for timings in (reference, candidate):
        assert [process.is_warm for process in timings.fresh] == [False, False, True]
        for process in timings.fresh:
            assert process.peak_bytes >= process.idle_bytes > 10_000_000
        (short, less), (long, more) = timings.growth
        assert (short, long) == (1, 2)
        assert more >= less > 10_000_000


@pytest.mark.slow
def test_a_model_without_sound_has_no_real_time_factor(
    fake_spec: Callable[..., str], fast_options: EvaluationOptions
) -> None:
    """An error that names it, not a division by zero."""
    good, mute = (
        make_subject(fake_spec(name, **ways), shown=name)
        for name, ways in (("good", {}), ("mute", {"mute": True}))
    )
    with pytest.raises(EvaluationError, match="'mute' speaks nothing"):
        time_models((good, mute), ["a", "b"], fast_options)


@pytest.mark.slow
def test_models_that_open_slowly_have_fewer_processes(
    fake_spec: Callable[..., str], fast_options: EvaluationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But as many as an interval takes."""
    monkeypatch.setattr("tts_compress.evaluation.stages._LONGEST_S", 0.0)
    subject = make_subject(fake_spec("m"))
    timings, _ = time_models((subject, subject), ["a"], replace(fast_options, timing_runs=5))
    assert len(timings.fresh) == len(timings.spent[0]) == FEWEST_PROCESSES


def test_the_first_chunk_counts_and_the_whole_where_nothing_streams() -> None:
    """An older report, and a player of whole texts, have no other time than the whole's."""
    whole = Timings(spent=((0.8,) * 3, (1.6,) * 3), audio=((1.0,) * 3,) * 2)
    stages = Timings(
        spent=((0.9,) * 3, (1.7,) * 3), first=((0.1,) * 3, (0.2,) * 3), audio=((1.0,) * 3,) * 2
    )
    run = SimpleNamespace(timings=(whole, stages), options=EvaluationOptions())
    metric = next(metric for metric in METRICS if metric.name == "first_audio")
    first = metric.compute(run)
    assert first.ratio == pytest.approx(8)
    assert first.candidate.p95_ms == pytest.approx(200)
    mean, tail = metric.table_rows(first, None)
    assert mean.change.startswith("8.0× sooner")
    assert (mean.reference, mean.trend) == ("1.13 s", "better"), "what the interval is of"
    (unsure, _) = metric.table_rows(first.model_copy(update={"interval": (0.9, 70.0)}), None)
    assert unsure.trend == "same"
    assert (tail.reference, tail.label) == ("1.60 s", "First sound, p95")


_GPU = {
    "allocated_bytes": 1e9,
    "reserved_bytes": 3e9,
    "peak_bytes": 2e9,
    "fragmentation": 0.25,
    "utilisation_percent": 40.0,
    "power_w": 300.4,
}


def _metric(name: str) -> Any:
    return next(metric for metric in find_metrics() if metric.name == name)


def _run(*sides: tuple[FreshProcess, ...], provider: str = "XExecutionProvider?fast=1") -> Any:
    """Return what is measured of two models that made two seconds of audio in half a second."""
    timings = [Timings(spent=((0.25,), (0.25,)), audio=((1.5,), (0.5,)), fresh=s) for s in sides]
    model = SimpleNamespace(on=lambda _: None, execution=Execution(provider=provider))
    subjects = [SimpleNamespace(model=model)] * 2
    return SimpleNamespace(timings=tuple(timings), subjects=subjects)


def test_a_gpus_use_is_the_median_of_fresh_processes() -> None:
    metric, peaks = _metric("gpu"), (2e9, 5e9, 1e9)
    processes = [FreshProcess(gpu=_GPU | {"peak_bytes": peak}) for peak in peaks]
    small = [FreshProcess(gpu=_GPU | {"peak_bytes": 1e9})]
    pair = metric.compute(_run(tuple(processes), tuple(small)))
    assert (pair.reference.peak_bytes, pair.candidate.peak_bytes) == (2e9, 1e9)
    rows = {row.label: row for row in metric.table_rows(pair, None)}
    assert rows["GPU memory, peak"].change == "2.0× less"
    assert rows["GPU memory, fragmented"].candidate == "25%"
    assert rows["GPU utilisation"].reference == "40%"
    assert rows["GPU power"].candidate == "300 W"
    without = [FreshProcess(gpu={n: v for n, v in _GPU.items() if n[0] in "arpf" and n[1] != "o"})]
    pair = metric.compute(_run(tuple(without), tuple(without)))
    assert "GPU power" not in {row.label for row in metric.table_rows(pair, None)}
    assert metric.compute(_run((FreshProcess(),), tuple(small))) is None


def test_operators_are_counted_by_provider() -> None:
    metric, x, cpu = _metric("provider"), "XExecutionProvider", "CPUExecutionProvider"
    whole = FreshProcess(operators={f"{x} Conv": 1_200, f"{x} Add": 34})
    part = FreshProcess(operators={f"{x} Conv": 7, f"{cpu} Loop": 2})
    pair = metric.compute(_run((whole,), (part,)))
    assert pair.reference.provider == x
    assert pair.reference.operators == {x: 1_234}
    assert pair.reference.fallback == ""
    assert pair.candidate.fallback.startswith(f"2 of 9 operators are not computed by {x}")
    (row,) = metric.table_rows(pair, None)
    assert (row.reference, row.candidate) == (f"1,234 {x}", f"7 {x}, 2 {cpu}")
    assert metric.compute(_run((FreshProcess(),), (FreshProcess(),))) is None


def test_throughput_is_compared_by_what_was_said() -> None:
    """The candidate takes as long for twice the audio, in six processes that differ a little.

    A text of which one says nothing has no such ratio.
    """
    spent = (tuple(np.linspace(0.9, 1.1, 6)), tuple(np.linspace(1.8, 2.2, 6)))
    silent = (0.0,) * 6
    sides = [
        Timings(spent=(*spent, silent), audio=((said,) * 6, (said,) * 6, silent))
        for said in (1.0, 2.0)
    ]
    metric = _metric("throughput")
    pair = metric.compute(SimpleNamespace(timings=sides))
    assert pair.reference == pytest.approx(2 / 3)
    assert pair.ratio == pytest.approx(2.0)
    (row,) = metric.table_rows(pair, None)
    assert row.candidate == "1.333 s of audio per s"
    assert row.change == "2.0× higher (95 % interval 2.00 … 2.00)"
    assert row.trend == "better"
    (unsure,) = metric.table_rows(pair.model_copy(update={"ratio_interval": (0.9, 4.4)}), 0)
    assert unsure.trend == "same"
    (older,) = metric.table_rows(pair.model_copy(update={"ratio": None, "ratio_interval": None}), 0)
    assert older.change == "2.0× higher"


def test_an_older_report_of_a_silent_voice_is_shown() -> None:
    metric = _metric("throughput")
    pair = metric.result(reference=0.0, candidate=2.0)
    (row,) = metric.table_rows(pair, None)
    assert (row.change, row.trend) == ("n/a", "unknown")
