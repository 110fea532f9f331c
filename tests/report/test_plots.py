"""The pictures of the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.report import html
from tts_compress.report.html import plots

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]


def drawn(evaluation: Evaluation) -> tuple[str, str, str]:
    words, sound, cost = plots(evaluation)
    return words.svg or "", sound.svg or "", cost.svg or ""


def test_the_change_of_the_words_stands_beside_both_floors(evaluation: Evaluation) -> None:
    words, _, _ = drawn(evaluation)
    assert ">Compressed against reference: +0.4 points</text>" in words
    assert ">Reference, other seeds: \u22120.4 points</text>" in words
    assert ">Recognizer alone: +0.2 points</text>" in words
    assert words.count("var(--candidate)") < words.count("var(--floor)")


def test_what_is_not_finite_is_left_out_of_a_picture(altered: Altered) -> None:
    words, _, cost = drawn(
        altered({"wer.interval": (math.nan, 0.1), "load.candidate.open_ms": math.inf})
    )
    assert "Compressed against reference" not in words
    assert "Recognizer alone" in words
    assert "Load time" not in cost
    assert "Size" in cost


def test_costs_are_named_with_both_values(evaluation: Evaluation) -> None:
    _, _, cost = drawn(evaluation)
    for text in (
        "Size: 16.3 MB of 63.2 MB",
        "Latency, mean: 65.1 ms of 202 ms",
        "Latency, p95: 117 ms of 351 ms",
        "Memory of the model: 167.0 MB of 316.0 MB",
        "Load time: 702 ms of 640 ms",
    ):
        assert f">{text}</text>" in cost


@pytest.mark.parametrize("floor", [0.0, 0.5, 50.0, math.nan])
@pytest.mark.parametrize("distance", [0.0, 1e-9, 3.0])
def test_distances_are_drawn_with_any_floor(
    altered: Altered, floor: float, distance: float
) -> None:
    changes: dict[str, Any] = {
        f"utterances.{place}.log_mel_distance_db": distance for place in range(24)
    }
    _, sound, _ = drawn(altered(changes | {"floors.other_seeds_log_mel_distance_db": floor}))
    assert "var(--candidate)" in sound
    assert ("other seeds" in sound) == math.isfinite(floor)


def test_a_plot_is_small_and_follows_the_width_of_the_page(evaluation: Evaluation) -> None:
    for picture in drawn(evaluation):
        assert len(picture) < 40_000
        assert picture.startswith('<svg role="img" aria-label="')
        assert "width=" not in picture.partition(">")[0]


def test_a_reference_that_costs_nothing_has_no_bar(altered: Altered) -> None:
    _, _, cost = drawn(altered({"size.reference_bytes": 0}))
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
    *_, first, memory = plots(found)
    assert first.title == "First sound by length of text"
    assert memory.title == "Memory by length of text"
    for picture in (first, memory):
        for word in ("compressed", "reference", "characters of the text"):
            assert f">{word}</text>" in (picture.svg or "")


def test_the_load_time_is_called_cold_only_where_it_is(altered: Altered) -> None:
    warm = {"load.reference.warm_ms": 1.0, "load.candidate.warm_ms": 1.0}
    for sides, name in (
        (("reference", "candidate"), "cold"),
        (("reference",), "fresh process"),
        ((), "fresh process"),
    ):
        _, _, cost = drawn(altered(warm | {f"load.{side}.is_cold": True for side in sides}))
        assert f"Load time, {name}: 702 ms of 640 ms" in cost
