"""Verdicts of gates as Markdown, JUnit XML and GitHub's annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tts_compress.evaluation import Gate, Gates, Verdict, read_gates
from tts_compress.evaluation import gate as judge
from tts_compress.report.markdown import (
    annotation_lines,
    conclusion,
    escape,
    render_junit,
    render_markdown,
    render_verdicts,
    result_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.evaluation.result import Evaluation

    Altered = Callable[[dict[str, Any]], Evaluation]


def _judge(evaluation: Evaluation, name: str = "own", **limits: float) -> Verdict:
    rows = tuple(
        Gate(metric=metric.replace("__", "."), limit=limit, direction="at-least", kind="absolute")
        for metric, limit in limits.items()
    )
    return judge(evaluation, Gates(version=1, name=name, summary="s", gate=rows))


@pytest.fixture
def verdicts(evaluation: Evaluation) -> list[Verdict]:
    """Return one verdict that passed, and one of which a gate failed."""
    return [
        _judge(evaluation, size__ratio=1.0),
        _judge(evaluation, name="steep", size__ratio=99.0, nothing__here=0.0, latency__ratio=1.0),
    ]


def test_a_summary_begins_with_what_failed(evaluation: Evaluation, verdicts: list[Verdict]) -> None:
    """Passed gates are folded away; the measurements stand between."""
    page = render_verdicts(evaluation, verdicts)
    heading, folded = page.splitlines()[0], page.index("<details>")
    assert heading.endswith("2 of 4 gates failed")
    assert (
        page.index("| steep | size on disk, reference over compressed (size.ratio) |")
        < page.index("| Size on disk |")
        < folded
    )
    assert "| steep | nothing.here | not measured | at least 0 |" in page[:folded]
    assert "| own | size on disk, reference over compressed (size.ratio) |" in page[folded:]
    assert "(latency.ratio) |" in page[folded:]
    assert "- steep: 2 of 3 gates failed\n" in page[:folded]
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
    assert title.startswith(r"## \<img src=x\> ## \| \`code\` !\[a\](http://&#8203;b)")
    assert not any("http://" in line for line in rest)
    assert "\x1b" not in page


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_gate(
    altered: Altered,
) -> None:
    """A test reporter counts failures, not errors; control characters are no XML."""
    evaluation = altered({"candidate.spec": 'a<b>&"\x00\x1b'})
    found = [_judge(evaluation, size__ratio=1.0), _judge(evaluation, size__ratio=99.0, wer=0.0)]
    text = render_junit(evaluation, found)
    root = ElementTree.fromstring(text)  # noqa: S314 -- our own
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites')
    assert (root.get("tests"), root.get("failures")) == ("3", "2")
    first, second = root.findall("testsuite")
    assert (first.get("name"), first.get("failures")) == ("own", "0")
    assert [case.get("name") for case in second.findall("testcase")] == [
        "size.ratio at least 99",
        "wer at least 0",
    ]
    messages = [failure.get("message", "") for failure in second.iter("failure")]
    assert messages[0].startswith("FAIL size on disk, reference over compressed (size.ratio): ")
    assert messages[1] == "FAIL wer: not measured; needs at least 0"
    assert [one.get("value") for one in first.iter("property")][1] == 'a<b>&"'


def test_annotations_are_one_line_for_each_failed_gate(
    evaluation: Evaluation, verdicts: list[Verdict]
) -> None:
    """GitHub reads `%`, line ends and, before the second `::`, `:` and `,` as its own."""
    first, second = annotation_lines(evaluation, verdicts)
    assert first.startswith("::error title=tts-compress gate steep::size on disk, ")
    assert second == (
        "::error title=tts-compress gate steep::nothing.here: not measured; needs at least 0"
    )
    row = verdicts[1].rows[0]
    odd = Verdict(name="a:b,c%", rows=(type(row)(gate=row.gate, value=None, passed=False),))
    (line,) = annotation_lines(evaluation, [odd])
    assert line.startswith("::error title=tts-compress gate a%3Ab%2Cc%25::size on disk, ")


def test_a_failed_gate_says_what_how_much_where_and_what_to_do(altered: Altered) -> None:
    """`signal.snr_db: 13.386 >= 20` read as a false equation, without a unit or a next step."""
    worst = {"signal.snr_db": 13.386, "utterances.3.log_mel_distance_db": 9.0}
    hurt = altered(worst)
    line = result_line(_judge(hurt, signal__snr_db=20.0).rows[0], hurt)
    assert line == (
        "FAIL  signal-to-noise ratio (signal.snr_db): 13.4 dB; needs at least 20.0 dB; worst text: "
        f'"{hurt.utterances[3].text}"; listen to it in report.html; find the part with '
        "`evaluate --blame`"
    )
    recorded = altered(worst | {"reference.family": "recordings"})
    line = result_line(_judge(recorded, signal__snr_db=20.0).rows[0], recorded)
    assert line.endswith("`evaluate --port`"), "recordings have no parts to blame"
    near = altered({"signal.snr_db": 19.99})
    assert "19.99; needs at least 20;" in result_line(
        _judge(near, signal__snr_db=20.0).rows[0], near
    )


def test_what_words_may_lose_is_said_with_the_verdict(evaluation: Evaluation) -> None:
    """The limit of `default` stood in a comment of its file alone."""
    said = conclusion(judge(evaluation, read_gates("default")))
    assert "gates failed; allowed: what the word error rate rose by at most" in said
    assert said.endswith("(wer.bound), at most +8.0 points")
    assert escape(said) in render_verdicts(evaluation, [judge(evaluation, read_gates("default"))])


@pytest.mark.parametrize(
    "text",
    ["fine\n# ALL GATES PASSED\n", "\x1b[31mred", "@someone see https://evil.example", "a/b#12"],
)
def test_warnings_of_a_report_forge_nothing(altered: Altered, text: str) -> None:
    """They come from somebody else's report.json into a summary that reviewers trust."""
    hostile = altered({"warnings": (text,), "reference.settings": {"speaker": text}})
    for page in (render_verdicts(hostile, [_judge(hostile, wer=0.0)]), render_markdown(hostile)):
        assert "\n# ALL" not in page
        assert "\x1b" not in page
        for live in ("@someone", "https://evil", "b#12"):
            assert live not in page


def test_junit_holds_what_xml_cannot(altered: Altered) -> None:
    hostile = altered({"suite.name": "a\ufffe\uffff\x0bb"})
    ElementTree.fromstring(render_junit(hostile, [_judge(hostile, wer=0.0)]))  # noqa: S314
