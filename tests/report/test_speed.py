"""Times, words and interval of one statistic, wherever a report shows a speed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.report import render_html, summary_rows
from tts_compress.report.markdown import render_markdown
from tts_compress.report.summary import cautions, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]

_SLOWER = {
    "latency.reference.mean_ms": 143.0,
    "latency.candidate.mean_ms": 154.0,
    "latency.ratio": 143 / 154,
    "latency.interval": (0.9, 0.96),
    "latency.p50_ratio": 1.01,
}
"""A slower candidate whose texts, by the median of their medians, look a little faster."""


def test_a_model_that_takes_longer_is_never_told_as_faster(altered: Altered) -> None:
    """It was: from 143 to 154 ms, "1.01 times faster", because two statistics were mixed."""
    found = altered(_SLOWER)
    (row,) = [row for row in summary_rows(found) if row.label == "Latency, mean"]
    assert (row.reference, row.candidate, row.change, row.trend) == (
        "143 ms",
        "154 ms",
        "1.08× slower (95 % interval 1.04 … 1.11)",
        "worse",
    )
    assert row.headline is not None
    assert (row.headline.value, row.headline.detail) == (
        "1.08× slower",
        "143 ms to 154 ms, mean; 95 % interval 1.04 … 1.11",
    )
    assert "1.08× slower (95 % interval 1.04 … 1.11)" in verdict(found)
    assert any("slower than the reference" in caution for caution in cautions(found))
    for page in (render_markdown(found), render_html(found)):
        assert "1.01×" not in page


@pytest.mark.parametrize(
    ("ratio", "interval", "trend"),
    [
        (1.6, (1.5, 1.7), "better"),
        (1.06, (0.94, 1.2), "same"),
        (1.06, (1.0, 1.2), "same"),
        (0.94, (0.9, 1.01), "same"),
        (0.94, (0.9, 0.99), "worse"),
        (1.6, None, "better"),
        (1.6, (math.nan, math.nan), "better"),
        (math.nan, (1.5, 1.7), "unknown"),
    ],
)
def test_a_speed_differs_only_where_its_interval_excludes_one(
    altered: Altered, ratio: float, interval: tuple[float, float] | None, trend: str
) -> None:
    found = altered({"latency.ratio": ratio, "latency.interval": interval})
    assert found.latency.trend == trend


@pytest.mark.parametrize("ratio", [0.97, 1.02])
def test_what_noise_may_have_done_is_neither_good_nor_bad(altered: Altered, ratio: float) -> None:
    """A busy machine makes a voice neither slow nor fast."""
    found = altered({"latency.ratio": ratio, "latency.interval": (0.9, 1.04)})
    assert cautions(found) == []
    assert {row.label: row.trend for row in summary_rows(found)}["Latency, mean"] == "same"


def test_the_pages_say_what_the_mean_and_its_interval_are(evaluation: Evaluation) -> None:
    for page in (render_markdown(evaluation), render_html(evaluation)):
        assert "geometric mean of all timed runs" in page
        assert "95 % interval over processes and" in page


def test_first_sound_and_memory_stand_beside_size_and_speed(evaluation: Evaluation) -> None:
    """A report of before the first sound was measured has none."""
    figures = evaluation.model_copy(update={"first_audio": evaluation.latency}).headline()
    assert (figures.first_audio_ms, figures.first_audio_ratio) == (117.3, evaluation.latency.ratio)
    assert (figures.model_bytes, figures.memory_ratio) == (167_000_000, 316 / 167)
    assert evaluation.headline().first_audio_ratio is None
