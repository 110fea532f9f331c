"""The sweep's page and table."""

import csv
import io
from typing import Any

import pytest

from tts_compress.sweep.page import _SIZE, _WORDS, render_page
from tts_compress.sweep.plan import Failure
from tts_compress.sweep.report import Entry, SweepReport, table_of


def entry(
    voice: str, scheme: str, *, speed: float = 2.0, passed: bool = True, **more: Any
) -> Entry:
    """Return a pair with plausible numbers."""
    return Entry(
        voice=voice,
        scheme=scheme,
        report=f"reports/{voice}/{scheme}/report.html",
        reference_bytes=9_600_000,
        candidate_bytes=2_600_000,
        size_ratio=9.6 / 2.6,
        speed=speed,
        speed_interval=(speed - 0.1, speed + 0.1),
        peak_bytes=120_000_000,
        wer_reference=0.15,
        wer_candidate=0.16,
        wer_delta=0.01,
        wer_interval=(-0.01, 0.03),
        distortion=0.2,
        dnsmos_reference=None,
        dnsmos_candidate=None,
        gates={"default": passed},
        **more,
    )


@pytest.fixture
def found() -> SweepReport:
    """Return a sweep of which a part failed."""
    return SweepReport(
        suite="en-quick",
        suite_sha256="0",
        recognizer="pocketsphinx",
        voices=("a", "b"),
        schemes=("int8", "fp16"),
        units=20,
        left=3,
        entries=(entry("a", "int8"), entry("a", "fp16", speed=9.0, passed=False)),
        failures=(Failure(voice="<b>", scheme="", unit="", reason="no <file>"),),
    )


def test_the_page_links_escapes_and_is_the_same_every_time(found: SweepReport) -> None:
    page = render_page(found)
    assert page == render_page(found)
    links = [page.count(f'href="reports/a/{name}/report.html"') for name in found.schemes]
    assert links == [5, 3], "two pictures and the table; smallest and fastest"
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "no &lt;file&gt;" in page
    assert "2 of 4 pairs of voice and scheme have a report; 1 passed every gate. 1 failure." in page
    assert "3 of 20 units are still to be done" in page
    fastest = page[page.index("Fastest that passed") :]
    assert fastest.index("a/int8") < fastest.index("a/fp16"), "what failed a gate is not best"
    assert "http" not in page.replace("http-equiv", "")
    assert not [word for word in ("DNSMOS", "Sooner", "Least memory") if word in page]


def test_opinions_are_shown_where_they_were_measured(found: SweepReport) -> None:
    scored = found.entries[0].model_copy(update={"dnsmos_reference": 3.1, "dnsmos_candidate": 3.0})
    page = render_page(found.model_copy(update={"entries": (scored, found.entries[1])}))
    assert "Size and opinion" in page
    assert ">3.00</td>" in page


def test_first_sound_and_memory_are_ranked_like_size_and_speed(found: SweepReport) -> None:
    """A report of before they were measured has neither, and is never the best of them."""
    soon: dict[str, Any] = {"first_audio_ms": 21.0, "first_audio_ratio": 7.5, "memory_ratio": 1.5}
    little: dict[str, Any] = {
        "first_audio_ms": 90.0,
        "first_audio_ratio": 2.5,
        "memory_ratio": 3.25,
    }
    entries = (
        entry("soon", "int8", **soon),
        entry("little", "int8", **little),
        entry("old", "int8"),
        entry("failed", "int8", passed=False, first_audio_ratio=9.0, memory_ratio=9.0),
    )
    page = render_page(found.model_copy(update={"entries": entries}))
    for title, voice in (("Soonest heard", "soon"), ("Least memory", "little")):
        card = page[page.index(f"{title} that passed") :].partition("</article>")[0]
        assert f"reports/{voice}/int8" in card
    assert "first sound after 21.0 ms" in page
    assert 'data-label="Sooner" data-value="7.5">7.50×</td>' in page
    assert 'data-label="Less memory" data-value="3.25">3.25×</td>' in page
    assert 'data-label="Sooner" data-value=""></td>' in page, "not measured: sorted to the end"


def test_words_that_nobody_heard_are_in_no_column(found: SweepReport) -> None:
    """The recognizer `none` had 100 % of errors before and after: "no change"."""
    unheard = dict.fromkeys(("wer_reference", "wer_candidate", "wer_delta", "wer_interval"))
    entries = tuple(one.model_copy(update=unheard) for one in found.entries)
    page = render_page(found.model_copy(update={"entries": entries}))
    assert "Reference WER" not in page
    assert "None" not in page
    assert "0.0 points" not in page


def test_pictures_are_in_per_cent_and_points() -> None:
    one = entry("a", "int8")
    assert (_SIZE.value(one), _WORDS.value(one)) == pytest.approx((260 / 9.6, 1.0))


def test_an_empty_sweep_has_a_page_and_a_table(found: SweepReport) -> None:
    empty = found.model_copy(update={"entries": ()})
    assert "No pair has a report yet" in render_page(empty)
    assert table_of(empty).startswith("voice,scheme,report,")


def test_the_table_has_every_number(found: SweepReport) -> None:
    rows = list(csv.DictReader(io.StringIO(table_of(found))))
    assert [row["scheme"] for row in rows] == ["int8", "fp16"]
    assert rows[0]["wer_interval_high"] == "0.03"
    assert [row["gate default"] for row in rows] == ["True", "False"]
