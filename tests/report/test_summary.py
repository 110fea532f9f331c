"""The few numbers everybody wants."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tts_compress.evaluation.metric import Row
from tts_compress.evaluation.result import Evaluation
from tts_compress.models.base import UNLIKE_UPSTREAM
from tts_compress.report import render_html, summary_rows, summary_table
from tts_compress.report.html import _draw_costs, _draw_words
from tts_compress.report.markdown import render_markdown
from tts_compress.report.summary import cautions, notes, verdict

Altered = Callable[[dict[str, Any]], Evaluation]


def rows(evaluation: Evaluation) -> dict[str, Row]:
    return {row.label: row for row in summary_rows(evaluation)}


def text(row: Row) -> tuple[str, str, str]:
    return row.reference, row.candidate, row.change


def test_the_rows_of_a_good_result(evaluation: Evaluation) -> None:
    found = {label: text(row) for label, row in rows(evaluation).items()}
    assert found == {
        "Size on disk": ("63.2 MB", "16.3 MB", "3.9\u00d7 smaller"),
        "Latency, mean": ("202 ms", "65.1 ms", "3.1\u00d7 faster (95 % interval 2.95 \u2026 3.26)"),
        "Latency, p95": ("351 ms", "117 ms", "3.0\u00d7 faster"),
        "Real-time factor": ("0.061", "0.020", "3.1\u00d7 faster"),
        "Memory of the model": ("316.0 MB", "167.0 MB", "1.9\u00d7 less"),
        "Peak memory": ("412.0 MB", "263.0 MB", "1.6\u00d7 less"),
        "Load time": ("640 ms", "702 ms", "1.1\u00d7 slower"),
        "Word error rate": ("6.3 %", "6.7 %", "+0.4 points (95 % interval \u22120.9 \u2026 +1.8)"),
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
    altered: Altered, changes: dict[str, Any], label: str, candidate: str, change: str, trend: str
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


_SLOWER = {
    "latency.reference.mean_ms": 143.0,
    "latency.candidate.mean_ms": 154.0,
    "latency.ratio": 143 / 154,
    "latency.interval": (0.9, 0.96),
    "latency.p50_ratio": 1.01,
}
"""A slower candidate whose texts, by the median of their medians, look a little faster."""


@pytest.mark.usefixtures("undrawn")
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


def test_first_sound_and_memory_stand_beside_size_and_speed(evaluation: Evaluation) -> None:
    """A report of before the first sound was measured has none."""
    figures = evaluation.model_copy(update={"first_audio": evaluation.latency}).headline()
    assert (figures.first_audio_ms, figures.first_audio_ratio) == (117.3, evaluation.latency.ratio)
    assert (figures.model_bytes, figures.memory_ratio) == (167_000_000, 316 / 167)
    assert evaluation.headline().first_audio_ratio is None


@pytest.mark.usefixtures("undrawn")
def test_memory_that_was_not_measured_is_said_to_be(evaluation: Evaluation) -> None:
    note = "Memory was not measured"
    assert not any(note in remark for remark in notes(evaluation))
    found = evaluation.model_copy(update={"memory": None})
    assert any(note in remark for remark in notes(found))
    recordings = found.model_copy(update={"size": None})
    assert not any(note in remark for remark in notes(recordings))
    assert note in render_html(found)
    assert _draw_costs(found) is not None
    assert "memory of its own" not in str(found)
    as_much = evaluation.memory.model_copy(update={"candidate": evaluation.memory.reference})
    assert "memory of its own" not in str(evaluation.model_copy(update={"memory": as_much}))
    assert found.headline().peak_bytes is None
    assert Evaluation.model_validate_json(found.to_json()) == found


def test_words_that_nobody_heard_are_no_figures(evaluation: Evaluation) -> None:
    suite = evaluation.suite.model_copy(update={"recognizer_name": "none"})
    spoken = tuple(
        u.model_copy(update={"speaker": "ab"[u.index % 2]}) for u in evaluation.utterances
    )
    unheard = evaluation.model_copy(update={"suite": suite, "utterances": spoken})
    figures = unheard.headline()
    words = (figures.wer_reference, figures.wer_candidate, figures.wer_delta, figures.wer_interval)
    assert words == (None,) * 4
    assert evaluation.headline().wer_delta == evaluation.wer.delta
    assert rows(unheard)["Word error rate"].change == "not judged"
    page = render_markdown(unheard)
    assert "Worst speaker, log-mel" in page
    assert "Worst speaker, words" not in page
    assert "Words were not judged." in page
    assert _draw_words(unheard) is None


def test_intervals_that_too_few_texts_do_not_have_are_not_counted(altered: Altered) -> None:
    assert any("has 3 intervals" in note for note in notes(altered({})))
    few = altered({"wer.interval": None, "cer.interval": None})
    assert not any("intervals of 95 %" in note for note in notes(few))


@pytest.fixture
def torch_evaluation(altered: Altered) -> Evaluation:
    """Return the evaluation of a language model."""
    return altered(
        {
            "teacher_forced": {
                "agreement": 0.974,
                "kl_nats": 0.00094,
                "logit_distance": 0.026,
                "positions": 5580,
                "texts": 8,
            }
        }
    )


def _added(evaluation: Evaluation, plain: Evaluation) -> list[tuple[str, str, str, str]]:
    usual = {row.label for row in summary_rows(plain)}
    return [
        (row.label, row.reference, row.candidate, row.change)
        for row in summary_rows(evaluation)
        if row.label not in usual
    ]


def test_the_rows(torch_evaluation: Evaluation, evaluation: Evaluation) -> None:
    assert _added(torch_evaluation, evaluation) == [
        ("Token agreement", "", "97.4 %", "5580 tokens, 8 texts"),
        ("KL divergence", "", "0.00094 nats", "per token, reading the same tokens"),
        ("Logit distance", "", "2.6 %", "of the reference's scores, RMS"),
    ]


def test_they_survive_the_disk_and_older_reports_have_none(
    torch_evaluation: Evaluation, evaluation: Evaluation
) -> None:
    assert Evaluation.from_json(torch_evaluation.to_json()) == torch_evaluation
    older = json.loads(evaluation.to_json())
    del older["teacher_forced"]
    older["runtimes"] = [{"name": "compile"}]
    for side in ("reference", "candidate"):
        del older[side]["settings"]
    assert Evaluation.from_json(json.dumps(older)) == evaluation


def test_a_distance_without_end_survives_the_disk(altered: Altered) -> None:
    """A reference that finds all tokens alike has no scores to be relative to."""
    scores = {"agreement": 0.1, "kl_nats": 9.0, "positions": 1, "texts": 1}
    found = altered({"teacher_forced": scores | {"logit_distance": math.inf}})
    assert Evaluation.from_json(found.to_json()) == found
    rows = {row.label: row for row in summary_rows(found)}
    assert rows["Logit distance"].candidate == "n/a"
    assert rows["Token agreement"].change == "1 token, 1 text"


def test_models_that_are_not_run_alike_are_a_caution(altered: Altered) -> None:
    """Fewer steps are faster, whatever the weights are; a recording may have another name."""
    settings = {"solver": "32 steps", "recording": "a.wav", "sample rate": "24000 Hz"}
    same = altered({"reference.settings": settings, "candidate.settings": settings})
    other = settings | {"solver": "16 steps", "recording": "reference.wav"}
    changed = altered({"reference.settings": settings, "candidate.settings": other})
    assert not any("run alike" in caution for caution in cautions(same))
    (caution,) = [caution for caution in cautions(changed) if "run alike" in caution]
    assert caution.endswith(
        "solver of the reference is '32 steps', of the compressed model '16 steps'."
    )
    assert "| Compressed model | solver | 16 steps |" in render_markdown(changed)
    fast = altered({"candidate.settings": {"provider": "CUDAExecutionProvider"}})
    (caution,) = [caution for caution in cautions(fast) if "run alike" in caution]
    assert "provider of the reference is 'CPUExecutionProvider'" in caution
    port = {"reference.family": "f5-tts", "reference.settings": {"device": "cuda:0"}}
    assert not any("run alike" in caution for caution in cautions(altered(port)))


@pytest.mark.usefixtures("undrawn")
def test_what_is_unlike_upstream_stands_above_the_figures(altered: Altered) -> None:
    settings = {UNLIKE_UPSTREAM: "dropout is off", "solver": "32 steps"}
    both = altered({"reference.settings": settings, "candidate.settings": settings})
    said = f"Models are run {UNLIKE_UPSTREAM}: dropout is off."
    assert said in cautions(both)
    assert not any(UNLIKE_UPSTREAM in caution for caution in cautions(altered({})))
    page, text = render_html(both).replace("&#39;", "'"), render_markdown(both)
    assert page.index(said) < page.index("<table")
    assert text.index(said) < text.index("| Size on disk")
