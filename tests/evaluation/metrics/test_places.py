"""Figures of where a model ran: its providers, and a GPU's memory and work."""

from types import SimpleNamespace
from typing import Any

import pytest

from tts_compress.evaluation.metric import find_metrics
from tts_compress.evaluation.stages import FreshProcess, Timings
from tts_compress.models.execution import Execution

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


def test_throughput_is_audio_by_time() -> None:
    metric = _metric("throughput")
    pair = metric.compute(_run((FreshProcess(),), (FreshProcess(),)))
    assert pair.reference == pytest.approx(4.0)
    (row,) = metric.table_rows(pair, None)
    assert row.candidate == "4 s of audio per s"
