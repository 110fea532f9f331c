"""Verdicts of gates as Markdown, JUnit XML and GitHub's annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tts_compress.evaluation import Gate, Gates, Verdict, check
from tts_compress.report.verdicts import annotation_lines, render_junit, render_verdicts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]


def _judge(evaluation: Evaluation, name: str = "own", **limits: float) -> Verdict:
    rows = tuple(
        Gate(metric=metric.replace("__", "."), limit=limit, direction="at-least", kind="absolute")
        for metric, limit in limits.items()
    )
    return check(evaluation, Gates(version=1, name=name, summary="s", gate=rows))


@pytest.fixture
def verdicts(evaluation: Evaluation) -> list[Verdict]:
    """Return one verdict that passed, and one of which a gate failed."""
    return [
        _judge(evaluation, size__ratio=1.0),
        _judge(evaluation, name="steep", size__ratio=99.0, nothing__here=0.0, latency__ratio=1.0),
    ]


def test_a_summary_begins_with_what_failed(evaluation: Evaluation, verdicts: list[Verdict]) -> None:
    """What passed is folded away; the measurements stand between."""
    page = render_verdicts(evaluation, verdicts)
    heading, folded = page.splitlines()[0], page.index("<details>")
    assert heading.endswith("2 of 4 gates failed")
    assert page.index("| steep | size.ratio |") < page.index("| Size on disk |") < folded
    assert "| steep | nothing.here | missing | ≥ 0 |" in page[:folded]
    assert "| own | size.ratio |" in page[folded:]
    assert "| steep | latency.ratio |" in page[folded:]
    assert page.endswith("</details>\n")


def test_a_summary_of_nothing_but_passes(evaluation: Evaluation, verdicts: list[Verdict]) -> None:
    page = render_verdicts(evaluation, verdicts[:1])
    assert page.splitlines()[0].endswith(": all 1 gates passed")
    assert "FAIL" not in page


def test_a_models_name_is_no_markup(altered: Altered) -> None:
    """It comes from a pull request, and the summary is shown to those who review it."""
    hostile = altered({"candidate.spec": "<img src=x>\n## | `code` ![a](http://b) \x1b[2J"})
    page = render_verdicts(hostile, [_judge(hostile, size__ratio=99.0)])
    title, *rest = page.splitlines()
    assert title.startswith(r"## \<img src=x\> ## \| \`code\` !\[a\](http://b)")
    assert not any("http://b" in line for line in rest)
    assert "\x1b" not in page


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_gate(
    altered: Altered,
) -> None:
    """What a test reporter counts are failures, not errors; control characters are no XML."""
    evaluation = altered({"candidate.spec": 'a<b>&"\x00\x1b'})
    found = [_judge(evaluation, size__ratio=1.0), _judge(evaluation, size__ratio=99.0, wer=0.0)]
    text = render_junit(evaluation, found)
    root = ElementTree.fromstring(text)  # noqa: S314 -- our own
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites')
    assert (root.get("tests"), root.get("failures")) == ("3", "2")
    first, second = root.findall("testsuite")
    assert (first.get("name"), first.get("failures")) == ("own", "0")
    assert [case.get("name") for case in second.findall("testcase")] == [
        "size.ratio ≥ 99",
        "wer ≥ 0",
    ]
    messages = [failure.get("message", "") for failure in second.iter("failure")]
    assert messages[0].startswith("FAIL size.ratio: ")
    assert messages[1] == "FAIL wer: missing ≥ 0"
    assert [one.get("value") for one in first.iter("property")][1] == 'a<b>&"'


def test_annotations_are_one_line_for_each_failed_gate(verdicts: list[Verdict]) -> None:
    """GitHub reads `%`, line ends and, before the second `::`, `:` and `,` as its own."""
    first, second = annotation_lines(verdicts)
    assert first.startswith("::error title=tts-compress gate steep::size.ratio: ")
    assert second == "::error title=tts-compress gate steep::nothing.here: missing ≥ 0"
    row = verdicts[1].rows[0]
    odd = Verdict(name="a:b,c%", rows=(type(row)(gate=row.gate, value=None, passed=False),))
    (line,) = annotation_lines([odd])
    assert line.startswith("::error title=tts-compress gate a%3Ab%2Cc%25::size.ratio: missing")
