"""The few numbers everybody wants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from tts_compress.report import summary_rows, summary_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.metric import Row
    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]


def rows(evaluation: Evaluation) -> dict[str, Row]:
    return {row.label: row for row in summary_rows(evaluation)}


def text(row: Row) -> tuple[str, str, str]:
    return row.reference, row.candidate, row.change


def test_the_rows_of_a_good_result(evaluation: Evaluation) -> None:
    found = {label: text(row) for label, row in rows(evaluation).items()}
    assert found == {
        "Size on disk": ("63.2 MB", "16.3 MB", "3.9\u00d7 smaller"),
        "Latency, mean": (
            "202 ms",
            "65.1 ms",
            "3.1\u00d7 faster (95 % interval 2.95 \u2026 3.26)",
        ),
        "Latency, p95": ("351 ms", "117 ms", "3.0\u00d7 faster"),
        "Real-time factor": ("0.061", "0.020", "3.1\u00d7 faster"),
        "Memory of the model": ("316.0 MB", "167.0 MB", "1.9\u00d7 less"),
        "Peak memory": ("412.0 MB", "263.0 MB", "1.6\u00d7 less"),
        "Load time": ("640 ms", "702 ms", "1.1\u00d7 slower"),
        "Word error rate": (
            "6.3 %",
            "6.7 %",
            "+0.4 points (95 % interval \u22120.9 \u2026 +1.8)",
        ),
        "Character error rate": (
            "2.4 %",
            "2.5 %",
            "+0.1 points (95 % interval \u22120.3 \u2026 +0.7)",
        ),
        "Log-mel distance": ("", "1.6 dB", "floor, other seeds: 4.7 dB"),
        "Log-mel, same timing": ("", "0.6 dB", "over the 75.0 % of same timing"),
        "Signal-to-noise ratio": ("", "38.4 dB", "over the 75.0 % of same timing"),
        "Length of the speech": ("", "0.9991\u00d7", "\u22120.09 %"),
        "Durations kept": ("", "99.3 %", "0.7 % of symbols moved"),
        "Broken utterances": ("none", "none", "none of 24, so below 11.7 % with 95 % confidence"),
    }


@pytest.mark.parametrize(
    ("changes", "label", "candidate", "change", "trend"),
    [
        ({"signal.snr_db": None}, "Signal-to-noise ratio", "n/a", "no same timing", "unknown"),
        (
            {"signal.same_timing": 0.0, "signal.same_timing_log_mel_distance_db": None},
            "Log-mel, same timing",
            "n/a",
            "no utterances of same timing",
            "unknown",
        ),
        ({"duration.kept": None}, "Durations kept", "n/a", "n/a", "unknown"),
        ({"wer.delta": math.nan}, "Word error rate", "6.7 %", "n/a", "unknown"),
        (
            {"wer.candidate": 0.05, "wer.delta": -0.0134, "wer.interval": (-0.02, -0.001)},
            "Word error rate",
            "5.0 %",
            "\u22121.3 points (95 % interval \u22122.0 \u2026 \u22120.1)",
            "better",
        ),
        ({"rtf.candidate.p50": 0.0}, "Real-time factor", "0.000", "n/a", "unknown"),
        (
            {"signal.log_mel_distance_db": 5.0},
            "Log-mel distance",
            "5.0 dB",
            "floor, other seeds: 4.7 dB",
            "worse",
        ),
        ({"duration.ratio": math.inf}, "Length of the speech", "n/a", "n/a", "unknown"),
        (
            {"health.candidate.silent": 1, "health.candidate.clipped": 2},
            "Broken utterances",
            "1 silent, 2 clipped",
            "fails",
            "worse",
        ),
    ],
)
def test_rows_of_unusual_results(
    altered: Altered,
    changes: dict[str, Any],
    label: str,
    candidate: str,
    change: str,
    trend: str,
) -> None:
    row = rows(altered(changes))[label]
    assert row.candidate == candidate
    assert row.change.startswith(change)
    assert row.trend == trend


def test_the_terminal_table_has_every_row_and_the_verdict(evaluation: Evaluation) -> None:
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(summary_table(evaluation))
    printed = capture.get()
    for row in summary_rows(evaluation):
        assert row.label in printed
        assert row.change in printed
    assert "no difference that this suite can show" in " ".join(printed.split())


def test_a_name_in_the_terminal_is_neither_markup_nor_a_control_sequence(altered: Altered) -> None:
    changed = altered({"candidate.spec": "[red]x[/nonsense]\x1b[2J"})
    console = Console(width=120)
    with console.capture() as capture:
        console.print(summary_table(changed))
    assert "[red]x[/nonsense][2J" in capture.get()
    assert "\x1b[2J" not in capture.get()
