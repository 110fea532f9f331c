"""Pass or fail a report; exits 1 when it fails.

`default` and `strict` judge quality (words, fidelity, durations, health, damage), which is the same
on a busy machine; `cost` judges size, speed, memory and the first sound. Gates on words fail where
the recognizer mishears more than half of the reference's own: nothing was judged then. `default`
lets the word error rate rise by up to eight points, rare losses included, for suites as short as
en-quick; `words-2` by two and `strict` by half a point, for en-full. `sound` is `default` without
words, for languages that no recognizer at hand understands. `autoregressive` is for language
models, whose timing is not shared. `regression` judges what changed since the report of --against.

Examples:
    gate out/report
    gate out/report --gates default --gates cost
    gate out/report --against eval/report.json
    gate out/report --summary "$GITHUB_STEP_SUMMARY" --junit gates.xml
"""

from __future__ import annotations

import os
import sys
from argparse import BooleanOptionalAction, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from tts_compress.cli.command import GATE_FAILED, GOOD, Command, Option, Output, path

if TYPE_CHECKING:
    from tts_compress.evaluation import Evaluation, Verdict

COMMAND = Command(
    __doc__,
    Option("report", "report.json, or its directory", type=path),
    Option(
        "--gates GATES",
        "default, sound, autoregressive, strict, words-2, cost, or your TOML; may be repeated "
        "(default)",
        action="append",
    ),
    Option(
        "--against REPORT",
        "an earlier report.json of the same suite, seeds and recognizer: also fail what is "
        "certainly worse, by the gates `regression` unless --gates names others of that kind",
        type=path,
    ),
    Option(
        "--summary FILE", "append the result as Markdown, for a job summary or a comment", type=path
    ),
    Option("--junit FILE", "write the result as JUnit XML", type=path),
    Option(
        "--annotations",
        "print failed gates as GitHub's annotations on standard error (in GitHub Actions)",
        action=BooleanOptionalAction,
    ),
    failed="a gate failed",
)


def run(options: Namespace) -> Output:
    """Judge the report; exit code 1 where a gate fails."""
    from tts_compress.evaluation import read_report
    from tts_compress.report.markdown import annotation_lines, conclusion, result_line

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
    on_github = os.environ.get("GITHUB_ACTIONS") == "true"
    if options.annotations or (options.annotations is None and on_github):
        for line in annotation_lines(report, verdicts):
            print(line, file=sys.stderr)
    return Output({"passed": passed, "rows": rows}, lines, GOOD if passed else GATE_FAILED)


def _judge(report: Evaluation, options: Namespace) -> list[Verdict]:
    """Return the verdicts of all gates that were asked for."""
    from tts_compress.evaluation import gate, read_gates, read_report

    gates = [read_gates(name) for name in options.gates or ["default"]]
    before = None if options.against is None else read_report(options.against)
    if before is not None and not any(limits.needs_earlier for limits in gates):
        gates.append(read_gates("regression"))
    return [gate(report, limits, before) for limits in gates]


def _write(report: Evaluation, verdicts: list[Verdict], options: Namespace) -> None:
    """Write the files that were asked for."""
    from tts_compress.artifact import append_text, write_text_atomically
    from tts_compress.report.markdown import render_junit, render_verdicts

    if options.summary is not None:
        append_text(options.summary, render_verdicts(report, verdicts))
    if options.junit is not None:
        write_text_atomically(options.junit, render_junit(report, verdicts))
