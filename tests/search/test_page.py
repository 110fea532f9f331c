"""The pages of searches and sensitivities, of made-up results."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from tts_compress.environment import describe_environment
from tts_compress.search.damage import Damage
from tts_compress.search.outcome import Judged, Point, SearchResult
from tts_compress.search.page import search_page, sensitivity_page
from tts_compress.search.result import Prediction, Row, Sensitivity

_DAMAGE = Damage(log_mel_db=0.2, distortion=0.1, duration_frames=0.01)
_MACHINE = describe_environment() | {"processor": {"model": "<b>Fast & new", "features": ["avx2"]}}


class _Body(HTMLParser):
    """The text of a page's elements, and the elements that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.facts: dict[str, str] = {}
        self._term = ""

    def handle_starttag(self, tag: str, _: object) -> None:
        if tag not in {"meta", "br", "img", "path", "use", "rect", "line"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["dt"]:
            self._term = data
        elif self.open[-2:] == ["dd", "bdi"]:
            self.facts[self._term] = data


def _judged(name: str, choice: dict[str, str] | None) -> Judged:
    return Judged(
        name=name,
        choice=choice,
        cost=1e6,
        size_bytes=1_000_000,
        damage=_DAMAGE,
        wer_rise=0.1,
        wer_interval=(-0.2, 0.4),
        distortion=0.1,
        speed=2.0,
        words="kept",
        report=f"judged/{name}",
    )


def _search() -> str:
    choice = {"dec.*": "int8"}
    point = Point(choice=choice, cost=1e6, damage=_DAMAGE)
    found = SearchResult(
        model="demo",
        objective="size",
        unit="bytes",
        bound=0.5,
        strict=False,
        suite="en-quick",
        recognizer="pocketsphinx",
        limits=_DAMAGE,
        trials=1,
        points=(point,),
        front=(point,),
        baseline=_judged("int8", None),
        judged=(_judged("1", choice),),
        chosen="1",
        statement="Candidate 1.",
        environment=_MACHINE,
    )
    return search_page(found)


def _sensitivity() -> str:
    row = Row(
        group="dec.*",
        component="dec",
        patterns=("dec.*",),
        format="int8",
        parameters=100,
        estimate=_DAMAGE,
        measured=_DAMAGE,
        saved_bytes=300,
        saved_ms=0.5,
    )
    found = Sensitivity(
        model="demo",
        sha256="0",
        formats=("int8",),
        texts=("a",),
        seed=0,
        environment=_MACHINE,
        reference_bytes=1000,
        reference_ms=1.0,
        prediction=Prediction(log_mel=None, durations=None),
        rows=(row,),
    )
    return sensitivity_page(found)


@pytest.mark.parametrize("write", [_search, _sensitivity])
def test_the_machine_is_a_list_for_people(write: Callable[[], str]) -> None:
    """Both pages ended in Python's dictionaries."""
    page = write()
    end = page[page.rindex("</section>", 0, page.index("<footer>")) - 3000 :]
    assert "{" not in end
    assert "<b>" not in page
    body = _Body()
    body.feed(page)
    assert not body.open
    assert body.facts["processor model"] == "<b>Fast & new"
    assert body.facts["processor features"] == "avx2"
    assert body.facts["packages tts-compress"] == _MACHINE["packages"]["tts-compress"]
    assert body.facts["python"] == _MACHINE["python"]
