"""`tts-compress gate`: pass or fail a report."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GATE_FAILED, GOOD, Output, explain, path

if TYPE_CHECKING:
    from tts_compress.evaluation import Evaluation, Verdict

_DESCRIPTION = """\
Pass or fail a report. `default` and `strict` judge quality (words, fidelity, durations, health,
damage), which is the same on a busy machine; `cost` judges size and speed. Gates on words fail
where the recognizer mishears more than half of the reference's own: nothing was judged then.
`default` lets the word error rate rise by up to ten points (upper end of its interval), for
suites as short as en-quick; `words-2` by two and `strict` by half a point, for en-full.
`regression` judges what changed since the report of --against.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "gate out/report",
        "gate out/report --gates default --gates cost",
        "gate out/report --against eval/report.json",
        'gate out/report --summary "$GITHUB_STEP_SUMMARY" --junit gates.xml',
        failed="a gate failed",
    )
    parser.description = _DESCRIPTION
    parser.add_argument("report", type=path, help="report.json, or its directory")
    parser.add_argument(
        "--gates",
        action="append",
        help="default, strict, words-2, cost, or your TOML; may be repeated (default)",
    )
    parser.add_argument(
        "--against",
        type=path,
        metavar="REPORT",
        help="an earlier report.json of the same suite, seeds and recognizer: also fail what is "
        "worse for certain (the gates `regression`, unless --gates names some of that kind)",
    )
    parser.add_argument(
        "--summary",
        type=path,
        metavar="FILE",
        help="append the result as Markdown, for a job summary or a comment",
    )
    parser.add_argument("--junit", type=path, metavar="FILE", help="write the result as JUnit XML")
    parser.add_argument(
        "--annotations",
        action=BooleanOptionalAction,
        default=os.environ.get("GITHUB_ACTIONS") == "true",
        help="print failed gates as GitHub's annotations on standard error (in GitHub Actions)",
    )


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.evaluation import read_report
    from tts_compress.report.verdicts import annotation_lines, conclusion, result_line

    report = read_report(options.report)
    verdicts = _judge(report, options)
    passed = all(verdict.passed for verdict in verdicts)
    rows, lines = [], []
    for verdict in verdicts:
        for row in verdict.rows:
            gate = row.gate.model_dump()
            rows.append({"gates": verdict.name, **asdict(row), "gate": gate})
            lines.append(result_line(row, report))
        lines.append(conclusion(verdict))
    _write(report, verdicts, options)
    if options.annotations:
        for line in annotation_lines(report, verdicts):
            print(line, file=sys.stderr)
    return Output({"passed": passed, "rows": rows}, lines, GOOD if passed else GATE_FAILED)


def _judge(report: Evaluation, options: Namespace) -> list[Verdict]:
    """Return the verdicts of all gates that were asked for."""
    from tts_compress.evaluation import gate, read_gates, read_report

    gates = [read_gates(name) for name in options.gates or ["default"]]
    before = None if options.against is None else read_report(options.against)
    if before is not None and not any(one.needs_earlier for one in gates):
        gates.append(read_gates("regression"))
    return [gate(report, one, before) for one in gates]


def _write(report: Evaluation, verdicts: list[Verdict], options: Namespace) -> None:
    """Write the files that were asked for."""
    from tts_compress.artifact import append_text, write_text_atomically
    from tts_compress.report.verdicts import render_junit, render_verdicts

    if options.summary is not None:
        append_text(options.summary, render_verdicts(report, verdicts))
    if options.junit is not None:
        write_text_atomically(options.junit, render_junit(report, verdicts))
