"""A metric or a recognizer is one file, of this package or of another."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tts_compress.audio import read_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import Evaluation, Gate, Gates, metric, pairs, result, store
from tts_compress.evaluation import gate as judge
from tts_compress.evaluation.metric import (
    Audios,
    Metric,
    Pair,
    Paired,
    Show,
    compare_pairs,
    find_figure,
    find_metrics,
)
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.recognizers import open_recognizer, recognizer_names
from tts_compress.report import render_html, render_markdown


def _peaks(audios: Audios) -> tuple[float, float]:
    reference, candidate = (
        float(abs(a.samples).max()) for a in (audios.reference, audios.candidate)
    )
    return reference, candidate


def _mean_peak(run: Run) -> Pair[float]:
    before, after = np.mean(run.observations("peak"), axis=0)
    return Pair(reference=float(before), candidate=float(after))


_PEAK = Metric(
    name="peak",
    group="sound",
    result=Pair[float],
    label="Peak",
    unit="FS",
    direction="higher",
    observe=_peaks,
    compute=_mean_peak,
    terms={"Peak": "the largest sample."},
)


class _Entry:
    """The part of an entry point that is used."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def load(self) -> ModuleType:
        """Return the module."""
        return self._module


class _Entries(tuple[_Entry, ...]):
    names = frozenset({"theirs"})


def _module(**content: Any) -> Callable[..., _Entries]:
    module = ModuleType("theirs")
    vars(module).update(content)
    return lambda **_: _Entries((_Entry(module),))


@pytest.fixture
def with_peak(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install another package's metric."""
    caches = (find_metrics, result._metric_values)
    monkeypatch.setattr(metric, "entry_points", _module(METRICS=(_PEAK,)))
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("with_peak", "untimed")
def test_a_metric_of_another_package_is_measured_shown_and_judged(
    evaluated: Callable[..., Evaluation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as loud: lower, and worse, because higher is better. Each recording is read once."""
    read: list[Path] = []

    def note(path: Path) -> Any:
        read.append(path)
        return read_wav(path)

    monkeypatch.setattr(pairs, "read_wav", note)
    monkeypatch.setattr(store, "read_wav", note)
    found = evaluated(gain=0.5)
    assert len(read) == len({*read}) == 3 * 6
    assert found.peak.candidate == pytest.approx(0.5 * found.peak.reference, rel=0.01)
    assert result.read_report(found.write(tmp_path / "report")) == found
    row = "| Peak | 0.3"
    assert row in render_markdown(found)
    assert "lower |" in render_markdown(found).partition(row)[2].splitlines()[0]
    assert "- **Peak**: the largest sample." in render_markdown(found)
    assert "<dt>Peak</dt><dd>The largest sample.</dd>" in render_html(found)
    gate = Gate(metric="peak.candidate", limit=0.2, direction="at-least", kind="absolute")
    assert not judge(found, Gates(version=1, name="g", summary="s", gate=(gate,))).passed


@pytest.mark.parametrize(
    ("value", "shown", "trend"),
    [
        (0.25, ("", "0.25 FS", ""), "unknown"),
        (Pair(reference=2.0, candidate=1.0), ("2 FS", "1 FS", "2.0× lower"), "worse"),
        (Pair(reference=1.0, candidate=3.0), ("1 FS", "3 FS", "3.0× higher"), "better"),
        (Pair(reference=0.0, candidate=1.0), ("0 FS", "1 FS", "n/a"), "unknown"),
        (Pair(reference=-2.0, candidate=-4.0), ("-2 FS", "-4 FS", "n/a"), "unknown"),
        (Pair(reference=-2.0, candidate=4.0), ("-2 FS", "4 FS", "n/a"), "unknown"),
        (Pair(reference=float("nan"), candidate=1.0), ("n/a", "1 FS", "n/a"), "unknown"),
        (Pair(reference=float("inf"), candidate=1.0), ("n/a", "1 FS", "n/a"), "unknown"),
    ],
)
def test_a_metric_without_rows_of_its_own_has_one(
    value: Any, shown: tuple[str, str, str], trend: str
) -> None:
    (row,) = _PEAK.table_rows(value, None)
    assert (row.label, row.reference, row.candidate, row.change) == ("Peak", *shown)
    assert row.trend == trend


def test_less_is_better_where_the_metric_says_so() -> None:
    (row,) = replace(_PEAK, direction="lower").table_rows(Pair(reference=2.0, candidate=1.0), None)
    assert row.trend == "better"


def test_shipped_metrics_come_in_the_order_of_the_tables() -> None:
    names = [found.name for found in find_metrics()]
    assert len({*names}) == len(names)
    assert names == [
        *("size", "latency", "rtf", "throughput", "memory", "load", "first_audio"),
        *("gpu", "provider"),
        *("wer", "cer", "floors"),
        *("distortion", "f0_rmse", "f0_corr", "f0_voicing_error", "f0_mean", "mos"),
        *("dnsmos_overall", "dnsmos_signal", "dnsmos_background", "dnsmos_p808", "plcmos"),
        *("pause_floor", "signal", "spk_similarity", "spk_similarity_prompt"),
        *("duration", "pause_count", "pause_seconds", "latent_forced", "teacher_forced"),
        *("damage", "health"),
    ]


def test_a_recognizer_of_another_package_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ears = object()
    monkeypatch.setattr(
        "tts_compress.evaluation.recognizers.entry_points", _module(open_recognizer=lambda *_: ears)
    )
    assert {"pocketsphinx", "theirs"} < recognizer_names()
    assert open_recognizer("theirs:model", "de") is ears
    with pytest.raises(EvaluationError, match=r"'ears'; known: .*pocketsphinx, theirs"):
        open_recognizer("ears", "de")


def _run(*texts: int) -> Any:
    return SimpleNamespace(blocks=[*texts])


def test_texts_are_resampled_with_all_their_seeds() -> None:
    """Half of the texts lose 0.4, half gain 0.2, each with two seeds that differ by 0.2."""
    texts = [place for text in range(12) for place in (text, text)]
    found = compare_pairs(_run(*texts), [3.0] * 24, [2.5, 2.7, 3.1, 3.3] * 6)
    assert found is not None
    assert (found.reference, found.candidate) == pytest.approx((3.0, 2.9))
    assert found.delta == pytest.approx(-0.1)
    means = compare_pairs(_run(*range(12)), [3.0] * 12, [2.6, 3.2] * 6)
    assert means is not None
    assert found.interval == pytest.approx(means.interval)


def test_eleven_texts_have_no_interval_whatever_their_seeds() -> None:
    """Their resamples agree too often: an interval without width would look like certainty."""
    texts = [place for text in range(11) for place in (text, text)]
    found = compare_pairs(_run(*texts), [3.0] * 22, [2.6, 3.2] * 11)
    assert found is not None
    assert found.interval is None
    (row,) = Show("x").metric("x", float).table_rows(found, None)
    assert row.change == "\N{MINUS SIGN}0.10 (95 % interval n/a)"
    assert row.trend == "unknown"


def test_a_pair_without_both_figures_is_left_out() -> None:
    """Text 1 has none at all; the figures of the others stay their own."""
    found = compare_pairs(_run(0, 1, 2, 2), [1.0, np.nan, 2.0, 3.0], [1.5, 9.0, 2.5, np.inf])
    assert found == Paired(reference=1.5, candidate=2.0, delta=0.5, interval=None)
    assert compare_pairs(_run(0), [np.nan], [1.0]) is None


def _value(reference: float, low: float, high: float) -> Paired:
    middle = (low + high) / 2
    candidate = reference + middle
    return Paired(reference=reference, candidate=candidate, delta=middle, interval=(low, high))


@pytest.mark.parametrize(
    ("ends", "trend", "unjudged"),
    [
        ((0.1, 0.2), "better", "unknown"),
        ((-0.2, -0.1), "worse", "unknown"),
        ((-1, 1), "same", "same"),
    ],
)
def test_a_change_is_judged_by_its_interval(
    ends: tuple[float, float], trend: str, unjudged: str
) -> None:
    value = _value(3.0, *ends)
    opposite = {"better": "worse", "worse": "better", "same": "same"}[trend]
    assert Show("x").rows(value)[0].trend == trend
    assert Show("x", better="lower").rows(value)[0].trend == opposite
    assert Show("x", better=None).rows(value)[0].trend == unjudged


@pytest.mark.parametrize(
    ("ends", "closeness", "distance"),
    [((0.1, 0.2), "same", "worse"), ((-0.2, -0.1), "worse", "same"), ((-1, 1), "same", "same")],
)
def test_closer_than_the_floor_is_close_enough(
    ends: tuple[float, float], closeness: str, distance: str
) -> None:
    value = _value(0.9, *ends)
    (row,) = Show("x", "s").metric("x", float, floor=True).table_rows(value, None)
    assert (row.trend, row.reference, row.change) == (closeness, "", "floor, other seeds: 0.90 s")
    assert Show("x", better="lower").floor_rows(value)[0].trend == distance


def test_a_reference_without_noise_gives_no_floor() -> None:
    assert Show("x").floor_rows(_value(1.0, -0.1, -0.05))[0].trend == "unknown"
    assert Show("x", better="lower").floor_rows(_value(0.0, 3.0, 4.0))[0].trend == "unknown"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("wer.delta", "change of the word error rate"),
        ("wer.interval.1", "change of the word error rate, upper end of its 95 % interval"),
        ("f0_mean.interval.0", "f0_mean.interval.0"),
        ("wer.interval.2", "wer.interval.2"),
    ],
)
def test_a_figure_has_words_or_its_path(path: str, name: str) -> None:
    assert find_figure(path).name == name


def test_figures_are_printed_in_their_unit() -> None:
    (row,) = Show("x", "%", digits=1, scale=100).rows(_value(0.25, -0.02, 0.04))
    assert (row.reference, row.candidate) == ("25.0 %", "26.0 %")
    assert row.change == "+1.0 (95 % interval \N{MINUS SIGN}2.0 \N{HORIZONTAL ELLIPSIS} +4.0)"
