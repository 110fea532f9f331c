"""The headline numbers of the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.report import summary_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.metric import Row
    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]


def cards(evaluation: Evaluation) -> dict[str, Row]:
    return {row.label: row for row in summary_rows(evaluation) if row.headline is not None}


def test_the_cards_of_a_good_result(evaluation: Evaluation) -> None:
    found = cards(evaluation).values()
    assert [(row.label, row.headline.value, row.trend) for row in found if row.headline] == [
        ("Size on disk", "3.9\u00d7 smaller", "better"),
        ("Latency, mean", "3.1\u00d7 faster", "better"),
        ("Memory of the model", "1.9\u00d7 less", "better"),
        ("Word error rate", "+0.4 points", "same"),
        ("Log-mel distance", "1.6 dB", "same"),
        ("Length of the speech", "\u22120.09 %", "unknown"),
        ("Broken utterances", "0", "same"),
    ]


@pytest.mark.parametrize(
    ("changes", "title", "judgement", "trend"),
    [
        ({"size.reference_bytes": 12_000_000}, "Size on disk", "takes more space", "worse"),
        ({"size.reference_bytes": 16_320_118}, "Size on disk", "no change", "same"),
        (
            {"rtf.candidate.p50": 1.25},
            "Latency, mean",
            "real-time factor 1.250, not faster than speech",
            "better",
        ),
        (
            {"rtf.candidate.p50": 0.5},
            "Latency, mean",
            "real-time factor 0.500, faster than speech",
            "better",
        ),
        (
            {"rtf.candidate.p50": math.nan},
            "Latency, mean",
            "real-time factor not measured",
            "better",
        ),
        ({"duration.kept": None}, "Length of the speech", "durations of single", "unknown"),
        ({"health.candidate.empty": 2}, "Broken utterances", "2 empty", "worse"),
        ({"health.reference.empty": 2}, "Broken utterances", "none silent", "better"),
        ({"signal.log_mel_distance_db": math.nan}, "Log-mel distance", "not measured", "unknown"),
    ],
)
def test_cards_of_unusual_results(
    altered: Altered, changes: dict[str, Any], title: str, judgement: str, trend: str
) -> None:
    row = cards(altered(changes))[title]
    assert row.headline is not None
    assert row.headline.judgement.startswith(judgement)
    assert row.trend == trend
