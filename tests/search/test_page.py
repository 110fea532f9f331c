"""The pages of searches and sensitivities, of made-up results."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tts_compress.environment import describe_environment
from tts_compress.search.measure import MeasuredDamage
from tts_compress.search.outcome import Judged, Point, Prediction, Row, SearchResult, Sensitivity
from tts_compress.search.page import search_page, sensitivity_page
from tts_compress.sweep.report import SweepReport

_DAMAGE = MeasuredDamage(same_noise=0.2, duration_frames=0.01, distortion=0.1, floor_db=0.5)
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


def _search_result() -> SearchResult:
    choice = {"dec.*": "int8"}
    point = Point(choice=choice, cost=1e6, damage=_DAMAGE)
    return SearchResult(
        model="demo",
        objective="size",
        unit="bytes",
        bound=0.5,
        strict=False,
        suite="en-quick",
        recognizer="pocketsphinx",
        admitted=0.5,
        trials=1,
        points=(point,),
        front=(point,),
        baseline=_judged("int8", None),
        judged=(_judged("1", choice),),
        chosen="1",
        statement="Candidate 1.",
        environment=_MACHINE,
    )


def _sensitivity_result() -> Sensitivity:
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
    return Sensitivity(
        model="demo",
        sha256="0",
        formats=("int8",),
        texts=("a",),
        seed=0,
        environment=_MACHINE,
        reference_bytes=1000,
        reference_ms=1.0,
        prediction=Prediction(sound=None, durations=None),
        rows=(row,),
    )


def test_a_suite_of_few_texts_has_no_interval_to_show() -> None:
    """All was measured, and then the page was an internal error."""
    few = _judged("1", {"dec.*": "int8"}).model_copy(update={"wer_interval": None})
    page = search_page(_search_result().model_copy(update={"judged": (few,)}))
    assert 'data-label="Interval">n/a<' in page


@pytest.mark.parametrize("kind", ["search", "sensitivity"])
def test_the_machine_is_a_list_for_people(kind: str) -> None:
    """Both pages ended in Python's dictionaries."""
    search = kind == "search"
    page = search_page(_search_result()) if search else sensitivity_page(_sensitivity_result())
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


@pytest.mark.slow
def test_without_the_packages_of_pages_the_documents_are_written(tmp_path: Path) -> None:
    """In a process of its own, as none of these modules may need them."""
    script = """
import sys
sys.modules |= {"jinja2": None, "matplotlib": None}
from pathlib import Path
from tts_compress.errors import MissingExtraError
from tts_compress.search.outcome import SearchResult, Sensitivity, write_result
from tts_compress.sweep.report import SweepReport, write_sweep
from tts_compress.sweep.results import open_results
search, sensitivity, sweep = sys.argv[1:]
folder = Path.cwd()
for write, found, place in (
    (write_result, SearchResult.model_validate_json(search), folder),
    (write_result, Sensitivity.model_validate_json(sensitivity), folder),
    (write_sweep, SweepReport.model_validate_json(sweep), open_results(str(folder))),
):
    try:
        write(found, place)
    except MissingExtraError as error:
        assert "install 'tts-compress[evaluate]'" in str(error), error
    else:
        raise AssertionError("there is a page")
"""
    sweep = SweepReport(
        suite="s",
        suite_sha256="0",
        recognizer="r",
        voices=(),
        schemes=(),
        units=0,
        left=0,
        entries=(),
        failures=(),
    )
    documents = [r.model_dump_json() for r in (_search_result(), _sensitivity_result(), sweep)]
    subprocess.run(
        [sys.executable, "-c", script, *documents],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"search.json", "sensitivity.json", "sweep.csv", "sweep.json"}
