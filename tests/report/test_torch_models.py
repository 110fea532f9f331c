"""Metrics that only some systems have are in their reports, and in no others."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from tts_compress.evaluation.result import Evaluation
from tts_compress.models.base import UNLIKE_UPSTREAM
from tts_compress.report import render_html, summary_rows, summary_table
from tts_compress.report.markdown import render_markdown
from tts_compress.report.summary import cautions, terms

if TYPE_CHECKING:
    from collections.abc import Callable

    Altered = Callable[[dict[str, Any]], Evaluation]


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
            },
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


def test_a_system_without_them_has_none(evaluation: Evaluation) -> None:
    for page in (render_markdown(evaluation), render_html(evaluation)):
        for word in ("Token agreement", "KL divergence"):
            assert word not in page


def test_they_are_on_the_page_in_markdown_and_in_the_terminal(torch_evaluation: Evaluation) -> None:
    """With what they mean."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(summary_table(torch_evaluation))
    markdown, page = render_markdown(torch_evaluation), render_html(torch_evaluation)
    for text in (capture.get(), markdown, page):
        for word in ("Token agreement", "0.00094 nats", "97.4 %"):
            assert word in text
    assert list(terms(torch_evaluation))[-1].startswith("Token agreement")
    for meaning in terms(torch_evaluation).values():
        assert meaning in " ".join(markdown.split())
    assert "<dt>Token agreement, KL divergence, logit distance</dt><dd>Both language" in page


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


def test_what_is_unlike_upstream_stands_above_the_figures(altered: Altered) -> None:
    settings = {UNLIKE_UPSTREAM: "dropout is off", "solver": "32 steps"}
    both = altered({"reference.settings": settings, "candidate.settings": settings})
    said = f"Models are run {UNLIKE_UPSTREAM}: dropout is off."
    assert said in cautions(both)
    assert not any(UNLIKE_UPSTREAM in caution for caution in cautions(altered({})))
    page, text = render_html(both).replace("&#39;", "'"), render_markdown(both)
    assert page.index(said) < page.index("<table")
    assert text.index(said) < text.index("| Size on disk")
