"""The damage of each component, in every form of the report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tts_compress.evaluation.blame import blame_sentence, blame_table
from tts_compress.evaluation.result import Blame, BlamedPart, Evaluation
from tts_compress.report import render_html, render_markdown
from tts_compress.report.html import plots
from tts_compress.report.summary import terms

if TYPE_CHECKING:
    from tests.report.test_plots import Altered

_SAME, _ALL = "signal.same_timing_log_mel_distance_db", "signal.log_mel_distance_db"
_TIMING, _SCORE = "signal.same_timing", "dnsmos_overall.delta"


def _values(same: float | None, overall: float, timing: float) -> dict[str, float | None]:
    return {_SAME: same, _ALL: overall, _TIMING: timing, _SCORE: None}


@pytest.fixture
def blame() -> Blame:
    parts = (
        BlamedPart(component="dec", role="decoder", values=_values(0.2, 0.2, 1.0)),
        BlamedPart(component="enc_p", role="text encoder", values=_values(0.044, 0.161, 0.71)),
        BlamedPart(component="<b>_x_", role="", values=_values(0.0, 0.073, 0.79)),
    )
    return Blame(
        texts=24,
        seed=0,
        ranked_by=_SAME,
        parts=parts,
        together={_SAME: 0.205, _SCORE: None},
        whole=_values(0.208, 0.33, 0.58),
    )


@pytest.fixture
def blamed(evaluation: Evaluation, blame: Blame) -> Evaluation:
    return evaluation.model_copy(update={"blame": blame})


def test_the_report_keeps_it(blamed: Evaluation, evaluation: Evaluation) -> None:
    assert Evaluation.from_json(blamed.to_json()) == blamed
    document = json.loads(blamed.to_json())
    assert document["blame"]["parts"][0]["component"] == "dec"
    assert "blame" in list(document)[-5:]
    assert "blame" not in json.loads(evaluation.to_json())


def test_the_table_has_what_was_measured(blame: Blame) -> None:
    header, rows = blame_table(blame)
    assert header == ["Component", "Log-mel, same timing", "Log-mel distance", "Same timing"]
    assert rows[0] == ("Decoder (dec)", "0.200 dB", "0.200 dB", "100.0 %")
    assert rows[2][0] == "<b>_x_"
    assert rows[3] == ("All parts, if independent", "0.205 dB", "", "")
    assert rows[4] == ("Whole model", "0.208 dB", "0.330 dB", "58.0 %")


def test_the_outcome_is_one_sentence(blame: Blame) -> None:
    assert blame_sentence(blame) == (
        "Decoder (dec) does the most damage: 0.200 dB where the whole model has 0.208 dB "
        "(Log-mel, same timing; 24 texts)."
    )
    silent = blame.parts[2]
    none = blame.model_copy(update={"parts": (silent,), "texts": 1})
    assert blame_sentence(none).startswith("No component alone does damage")


def test_the_pages_show_it(blamed: Evaluation, evaluation: Evaluation) -> None:
    page, markdown = render_html(blamed), render_markdown(blamed)
    assert '<h2 id="blame">Which part did it</h2>' in page
    assert "&lt;b&gt;_x_" in page
    assert "<b>_x_" not in page
    assert '<td class="number" data-label="Log-mel, same timing">0.200 dB</td>' in page
    assert "| Decoder (dec) | 0.200 dB | 0.200 dB | 100.0 % |" in markdown
    assert "Which part did it" in terms(blamed)
    for text in (render_html(evaluation), render_markdown(evaluation), *terms(evaluation)):
        assert "Which part did it" not in text


def test_the_picture_has_a_bar_for_each_and_the_whole(blamed: Evaluation) -> None:
    *others, drawn = plots(blamed)
    assert len(others) == 3
    assert drawn.svg is not None
    for text in ("dec: 0.200 dB", "enc_p: 0.044 dB", "whole model: 0.208 dB"):
        assert f">{text}</text>" in drawn.svg


@pytest.mark.parametrize("same", [None, 0.0])
def test_no_damage_is_drawn_too(altered: Altered, blame: Blame, same: float | None) -> None:
    part = blame.parts[0].model_copy(update={"values": _values(same, 0.0, 0.0)})
    found = altered({}).model_copy(
        update={"blame": blame.model_copy(update={"parts": (part,), "ranked_by": _ALL})}
    )
    assert ">dec: 0.000 dB</text>" in str(plots(found)[-1].svg)
    render_markdown(found)
