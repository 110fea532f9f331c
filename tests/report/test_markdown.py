"""The report as Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from markdown_it import MarkdownIt

from tts_compress.report import summary, summary_rows
from tts_compress.report.markdown import render_markdown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]

HOSTILE = "<script>alert(1)</script> | `x` **b** [l](javascript:a) ![i](j) $m$ \\| &amp; \n\n# h"


def as_html(markdown: str) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(markdown))


def test_it_has_title_verdict_table_floors_worst_utterances_and_provenance(
    evaluation: Evaluation,
) -> None:
    page = as_html(render_markdown(evaluation))
    assert "<h1>out/en_US-lessac-medium-int8 (int8) against en_US-lessac-medium.onnx</h1>" in page
    assert f"<strong>{summary.verdict(evaluation)}</strong>" in page
    for row in summary_rows(evaluation):
        assert f">{row.label}</td>" in page
        assert f">{row.change}</td>" in page
    assert "<td>Reference against itself, other seeds</td>" in page.replace(
        ' style="text-align:left"', ""
    )
    assert page.count("<table>") == 4
    for fact in ("pocketsphinx 5.0.4", "a7" * 32, "Example CPU at 2.4 GHz", "avx512_vnni"):
        assert fact in page


def test_every_row_has_as_many_cells_as_its_table(evaluation: Evaluation) -> None:
    for table in render_markdown(evaluation).split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.parametrize("path", ["text", "reference.hypothesis", "candidate.hypothesis"])
def test_a_hostile_text_stays_text(altered: Altered, path: str) -> None:
    """It is printed as it is, in one cell, and neither HTML nor a link comes of it."""
    changed = altered({f"utterances.3.{path}": HOSTILE, "utterances.3.candidate.word_errors": 99})
    page = as_html(render_markdown(changed))
    shown = "&lt;script&gt;alert(1)&lt;/script&gt; | `x` **b** [l](javascript:a) ![i](j) $m$ \\|"
    assert shown in page
    for element in ("<script", "<a ", "<img", "<code", "<em"):
        assert element not in page


def test_a_hostile_name_stays_text(altered: Altered) -> None:
    changed = altered({"candidate.spec": HOSTILE, "environment": {HOSTILE: [HOSTILE, None]}})
    page = as_html(render_markdown(changed))
    assert "<script" not in page
    assert page.count("<h1>") == 1


def test_a_very_long_text_is_cut(altered: Altered) -> None:
    long = {"utterances.0.text": "long " * 5000, "utterances.0.candidate.word_errors": 9}
    changed = altered(long)
    assert max(len(line) for line in render_markdown(changed).splitlines()) < 1000


def test_the_utterances_that_lost_most_come_first_and_the_others_not_at_all(
    altered: Altered,
) -> None:
    same = {
        f"utterances.{place}.{side}.word_errors": 1
        for place in range(24)
        for side in ("reference", "candidate")
    }
    assert "No utterance has more word errors" in render_markdown(altered(same))
    worst = {"utterances.5.candidate.word_errors": 4, "utterances.9.candidate.word_errors": 7}
    markdown = render_markdown(altered(same | worst))
    assert markdown.index("1 to 7 of") < markdown.index("1 to 4 of")
    assert "1 to 1 of" not in markdown


def test_cautions_are_quoted_on_top(altered: Altered) -> None:
    markdown = render_markdown(altered({"latency.ratio": 0.5, "latency.interval": (0.4, 0.6)}))
    assert "\n> The compressed model is slower than the reference on this machine.\n" in markdown


def test_nothing_measured_is_still_a_report(altered: Altered) -> None:
    changed = altered({"utterances": (), "wer.delta": math.nan, "signal.snr_db": None})
    assert "There are no utterances." in render_markdown(changed)
