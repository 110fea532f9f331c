"""The report as Markdown."""

import math
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from tts_compress.evaluation import Gate, Gates, Verdict, read_gates
from tts_compress.evaluation import gate as judge
from tts_compress.evaluation.result import Evaluation
from tts_compress.report import summary, summary_rows
from tts_compress.report.markdown import (
    annotation_lines,
    conclusion,
    escape,
    render_junit,
    render_markdown,
    render_verdicts,
    result_line,
)

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


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_gate(altered: Altered) -> None:
    """A test reporter counts failures, not errors; control characters are no XML."""
    evaluation = altered({"candidate.spec": 'a<b>&"\x00\x1b\ufffe'})
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
    assert (
        messages[1]
        == "FAIL wer: 'wer' is not a number; name one of its parts, such as 'wer.reference'"
    )
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
    kept = result_line(_judge(near, signal__snr_db=19.0).rows[0], near)
    assert kept == "pass  signal-to-noise ratio (signal.snr_db): 20.0 dB (at least 19.0 dB)"


def test_what_words_may_lose_is_said_with_the_verdict(evaluation: Evaluation) -> None:
    """The limit of `default` stood in a comment of its file alone."""
    said = conclusion(judge(evaluation, read_gates("default")))
    assert "gates failed; allowed: upper bound of the rise of the word error rate" in said
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
