"""The headline numbers of the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.report.tables import headlines

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.metric import Headline
    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]


def card(evaluation: Evaluation, title: str) -> Headline:
    (found,) = [card for card in headlines(evaluation) if card.title == title]
    return found


def test_the_cards_of_a_good_result(evaluation: Evaluation) -> None:
    assert [(card.title, card.value, card.trend) for card in headlines(evaluation)] == [
        ("Size on disk", "3.9\u00d7 smaller", "better"),
        ("Speed", "3.1\u00d7 faster", "better"),
        ("Word error rate", "+0.4 points", "same"),
        ("Log-mel distance", "1.6 dB", "same"),
        ("Length of the speech", "\u22120.09 %", "unknown"),
        ("Broken utterances", "0", "same"),
    ]


@pytest.mark.parametrize(
    ("changes", "title", "judgement", "trend"),
    [
        ({"size.ratio": 0.8}, "Size on disk", "takes more space", "worse"),
        ({"size.ratio": 1.0}, "Size on disk", "no change", "same"),
        (
            {"rtf.candidate.p50": 1.25},
            "Speed",
            "real-time factor 1.250, not faster than speech",
            "better",
        ),
        (
            {"rtf.candidate.p50": 0.5},
            "Speed",
            "real-time factor 0.500, faster than speech",
            "better",
        ),
        ({"rtf.candidate.p50": math.nan}, "Speed", "real-time factor not measured", "better"),
        ({"duration.kept": None}, "Length of the speech", "durations of single", "unknown"),
        ({"health.candidate.empty": 2}, "Broken utterances", "2 empty", "worse"),
        ({"health.reference.empty": 2}, "Broken utterances", "none silent", "same"),
        ({"signal.log_mel_distance_db": math.nan}, "Log-mel distance", "not measured", "unknown"),
    ],
)
def test_cards_of_unusual_results(
    altered: Altered, changes: dict[str, Any], title: str, judgement: str, trend: str
) -> None:
    shown = card(altered(changes), title)
    assert shown.judgement.startswith(judgement)
    assert shown.trend == trend
