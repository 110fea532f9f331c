"""The pictures of the page."""

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tts_compress.evaluation.blame import blame_sentence, blame_table
from tts_compress.evaluation.result import Blame, BlamedPart, Evaluation
from tts_compress.report import html, render_html, render_markdown
from tts_compress.report.pages import draw_svg
from tts_compress.report.summary import terms

Altered = Callable[[dict[str, Any]], Evaluation]


def drawn(draw: Callable[[Evaluation], Any], evaluation: Evaluation) -> str:
    return draw_svg("A picture", partial(draw, evaluation)) or ""


@pytest.fixture(scope="module")
def pictures(evaluation: Evaluation) -> list[str]:
    """Return words, sound and cost as the page has them."""
    return [picture.svg or "" for picture in html.plots(evaluation)]


def test_the_change_of_the_words_stands_beside_both_floors(pictures: list[str]) -> None:
    words = pictures[0]
    assert ">Compressed against reference: +0.4 points</text>" in words
    assert ">Reference, other seeds: \u22120.4 points</text>" in words
    assert ">Recognizer alone: +0.2 points</text>" in words
    assert words.count("var(--candidate)") < words.count("var(--floor)")


def test_what_is_not_finite_is_left_out_of_a_picture(altered: Altered) -> None:
    changed = altered({"wer.interval": (math.nan, 0.1), "load.candidate.open_ms": math.inf})
    words, cost = (drawn(draw, changed) for draw in (html._draw_words, html._draw_costs))
    assert "Compressed against reference" not in words
    assert "Recognizer alone" in words
    assert "Load time" not in cost
    assert "Size" in cost


def test_costs_are_named_with_both_values(pictures: list[str]) -> None:
    for text in (
        "Size: 16.3 MB of 63.2 MB",
        "Latency, mean: 65.1 ms of 202 ms",
        "Latency, p95: 117 ms of 351 ms",
        "Memory of the model: 167.0 MB of 316.0 MB",
        "Load time: 702 ms of 640 ms",
    ):
        assert f">{text}</text>" in pictures[2]


@pytest.mark.parametrize(
    ("floor", "distance"), [(0.0, 0.0), (0.5, 3.0), (50.0, 3.0), (math.nan, 1e-9)]
)
def test_distances_are_drawn_with_any_floor(
    altered: Altered, floor: float, distance: float
) -> None:
    changes: dict[str, Any] = {
        f"utterances.{place}.log_mel_distance_db": distance for place in range(24)
    }
    changes["floors.other_seeds_log_mel_distance_db"] = floor
    sound = drawn(html._draw_distances, altered(changes))
    assert "var(--candidate)" in sound
    assert ("other seeds" in sound) == (floor > 0.0)


def test_a_plot_is_small_and_follows_the_width_of_the_page(pictures: list[str]) -> None:
    for picture in pictures:
        assert len(picture) < 40_000
        assert picture.startswith('<svg role="img" aria-label="')
        assert "width=" not in picture.partition(">")[0]


def test_a_reference_that_costs_nothing_has_no_bar(altered: Altered) -> None:
    cost = drawn(html._draw_costs, altered({"size.reference_bytes": 0}))
    assert "Size" not in cost
    assert "Memory of the model" in cost


def test_first_sound_and_memory_are_drawn_by_the_length_of_the_text(altered: Altered) -> None:
    """A point for each text that was timed; an older report has no such pictures."""
    growth = ((40, 100_000_000), (62, 250_000_000))
    found = altered({"memory.reference.growth": growth, "memory.candidate.growth": growth[:1]})
    runs = ((10.0, 30.0, 20.0), (40.0, 40.0, 40.0), (90.0, 80.0, 100.0))
    side = found.latency.reference.model_copy(update={"runs_ms": runs})
    both = {"texts": 3, "reference": side, "candidate": side}
    found = found.model_copy(update={"first_audio": found.latency.model_copy(update=both)})
    lengths = sorted({len(one.text) for one in found.utterances})
    assert html._first_sounds(found)[1] == [(lengths[0], 20), (55, 40), (lengths[-1], 90)]
    assert html._memories(found) == ([(40, 100.0), (62, 250.0)], [(40, 100.0)])
    (first, *_, first_sound), (memory, *_, memory_of) = html._GROWTHS
    assert first == "First sound by length of text"
    assert memory == "Memory by length of text"
    for picture in (drawn(first_sound, found), drawn(memory_of, found)):
        for word in ("compressed", "reference", "characters of the text"):
            assert f">{word}</text>" in picture


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


@pytest.mark.usefixtures("undrawn")
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
    *others, last = html.plots(blamed)
    assert len(others) == 3
    for text in ("dec: 0.200 dB", "enc_p: 0.044 dB", "whole model: 0.208 dB"):
        assert f">{text}</text>" in (last.svg or "")


@pytest.mark.parametrize("same", [None, 0.0])
def test_no_damage_is_drawn_too(altered: Altered, blame: Blame, same: float | None) -> None:
    part = blame.parts[0].model_copy(update={"values": _values(same, 0.0, 0.0)})
    found = altered({}).model_copy(
        update={"blame": blame.model_copy(update={"parts": (part,), "ranked_by": _ALL})}
    )
    assert ">dec: 0.000 dB</text>" in drawn(html._draw_blame, found)
    render_markdown(found)
