"""The meaning of the numbers, in sentences."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from tts_compress.evaluation.metrics.signal import distance_judgement
from tts_compress.evaluation.result import Evaluation
from tts_compress.report import summary

Altered = Callable[[dict[str, Any]], Evaluation]


@pytest.mark.parametrize(
    ("interval", "trend"),
    [
        ((-0.009, 0.018), "same"),
        ((0.0, 0.018), "same"),
        ((-0.01, 0.0), "same"),
        ((0.00001, 0.018), "worse"),  # rounds to 0.0 points, and is above zero all the same
        ((-0.02, -0.00001), "better"),
        ((math.nan, math.nan), "unknown"),
    ],
)
def test_an_error_rate_changed_only_where_its_interval_excludes_zero(
    altered: Altered, interval: tuple[float, float], trend: str
) -> None:
    assert altered({"wer.interval": interval}).wer.trend == trend


def test_the_verdict_is_one_sentence_with_size_speed_and_words(evaluation: Evaluation) -> None:
    assert summary.verdict(evaluation) == (
        "The compressed model is 3.9\u00d7 smaller and 3.1\u00d7 faster (95 % interval 2.95 "
        "\u2026 3.26), and takes 1.9\u00d7 less memory of its own; its word error rate changed by "
        "+0.4 points (95 % interval \u22120.9 \u2026 +1.8): no difference that this suite can "
        "show. A loss of less than 13.0 points could go unnoticed: 80 % of such runs find one of "
        "that size."
    )


def test_the_verdict_names_the_distortion_where_it_was_measured(altered: Altered) -> None:
    found = {"value": 0.21, "interval": (0.18, 0.23), "added_db": 0.06, "other_seeds_db": 1.07}
    assert summary.verdict(altered({"distortion": found})).endswith(
        "Its distortion is 21 % (95 % interval +18 \u2026 +23 %) of what telephone coding would "
        "add: less than that coding."
    )


def test_the_verdict_on_broken_utterances_speaks_of_nothing_else(altered: Altered) -> None:
    """A silent voice makes no insertions; its words must not be praised."""
    sentence = summary.verdict(altered({"health.candidate.silent": 2}))
    assert "2 silent" in sentence
    assert "word error rate" not in sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"size.ratio": 1.0, "latency.ratio": 1.0, "latency.interval": None},
            "of unchanged size and of unchanged speed",
        ),
        (
            {"size.ratio": 0.5, "latency.ratio": 0.5, "latency.interval": (0.4, 0.625)},
            "2.0\u00d7 larger and 2.0\u00d7 slower (95 % interval 1.60 \u2026 2.50)",
        ),
        (
            {"latency.ratio": 1.06, "latency.interval": (0.94, 1.2)},
            "3.9\u00d7 smaller and as fast, as far as these runs can show (1.06\u00d7 faster, "
            "95 % interval 0.94 \u2026 1.20)",
        ),
        (
            {"size.ratio": math.nan, "latency.ratio": math.nan},
            "of unknown size and of unknown speed",
        ),
    ],
)
def test_the_verdict_in_unusual_cases(
    altered: Altered, changes: dict[str, Any], words: str
) -> None:
    assert f"The compressed model is {words}, and takes" in summary.verdict(altered(changes))


def test_a_good_evaluation_needs_no_caution(evaluation: Evaluation) -> None:
    assert summary.cautions(evaluation) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"health.candidate.clipped": 1}, "Broken utterances of the compressed model: 1 clipped."),
        ({"health.reference.not_finite": 3}, "Broken utterances of the reference: 3 not finite."),
        ({"wer.reference": 0.62}, "mishears 62.0 % of the reference's own words"),
        ({"latency.ratio": 0.94, "latency.interval": (0.91, 0.97)}, "slower than the reference"),
        ({"size.ratio": 0.99}, "larger than the reference"),
    ],
)
def test_what_a_reader_must_know_is_said(
    altered: Altered, changes: dict[str, Any], words: str
) -> None:
    (caution,) = summary.cautions(altered(changes))
    assert words in caution


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"floors.recognizer.interval": (-0.02, 0.02), "wer.interval": (0.001, 0.009)},
            "the change by compression lies within that interval",
        ),
        (
            {"floors.other_seeds.interval": (-0.071, -0.005), "floors.other_seeds.delta": -0.033},
            "by \u22123.3 points (95 % interval \u22127.1 \u2026 \u22120.5), although nothing was",
        ),
    ],
)
def test_what_helps_to_read_the_numbers_is_no_alarm(
    altered: Altered, changes: dict[str, Any], words: str
) -> None:
    """Good news stood in the colour of an error."""
    changed = altered(changes)
    assert words in " ".join(summary.notes(changed))
    assert words not in " ".join(summary.notes(altered({})))
    narrow = altered(changes | {"floors.recognizer.interval": (-0.02, 0.002)})
    assert "the recognizer alone" not in " ".join(summary.notes(narrow))
    assert summary.cautions(changed) == []


def test_words_without_evidence_are_not_called_unchanged(altered: Altered) -> None:
    """Both models misheard alike, or too few texts: zero points are no result."""
    lost = altered({"wer.reference": 1.0, "wer.candidate": 1.0, "wer.delta": 0.0})
    told = "; for words nothing was judged: no word of the reference was recognized"
    assert told in summary.verdict(lost)
    lost = altered({"wer.reference": 0.9, "wer.candidate": 0.9, "wer.delta": 0.0})
    assert altered({"wer.reference": 0.9, "wer.interval": (0.01, 0.02)}).wer.trend == "unknown"
    told = "; for words nothing was judged: the recognizer mishears 90.0 %"
    assert told in summary.verdict(lost)
    few = summary.verdict(altered({"wer.interval": None}))
    assert "changed by +0.4 points: too few texts to say if that is chance." in few
    assert "could go unnoticed" not in few


@pytest.mark.parametrize(
    ("distance", "words"),
    [(1.6, "closer than"), (4.72, "as far as"), (9.0, "as far as"), (math.nan, "not measured")],
)
def test_the_distance_is_judged_by_its_floor(altered: Altered, distance: float, words: str) -> None:
    changed = altered({"signal.log_mel_distance_db": distance})
    assert distance_judgement(changed)[1].startswith(words)


def test_without_another_rendering_there_is_no_floor(altered: Altered) -> None:
    """Equal recordings, one a text, were as far apart as the reference is from itself: worse."""
    found = altered(
        {"signal.log_mel_distance_db": 0.0, "floors.other_seeds_log_mel_distance_db": 0.0}
        | {f"utterances.{place}.speaker": "ab"[place % 2] for place in range(24)}
    )
    rows = {row.label: row for row in summary.summary_rows(found)}
    distance = rows["Log-mel distance"]
    assert distance.change.startswith("no floor")
    assert distance.headline is not None
    assert distance.headline.judgement.startswith("no floor")
    assert {distance.trend, rows["Worst speaker, log-mel"].trend} == {"unknown", "same"}
