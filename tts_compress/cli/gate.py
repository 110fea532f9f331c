"""`tts-compress gate`: pass or fail a report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GATE_FAILED, GOOD, Output

if TYPE_CHECKING:
    from tts_compress.evaluation import GateResult

_DESCRIPTION = """
Pass or fail a report. `default` and `strict` judge quality (words, fidelity, durations, health,
damage), which is the same on a busy machine; `cost` judges size and speed. Gates on words fail
where the recognizer mishears more than half of the reference's own: nothing was judged then. The
exit code is 1 where a gate fails.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("report", type=Path, help="report.json, or its directory")
    parser.add_argument(
        "--gates",
        action="append",
        help="default, strict, cost, or your TOML; may be repeated (default)",
    )


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.evaluation import check, read_gates, read_report

    report = read_report(options.report)
    verdicts = [check(report, read_gates(name)) for name in options.gates or ["default"]]
    passed = all(verdict.passed for verdict in verdicts)
    rows, lines = [], []
    for verdict in verdicts:
        for row in verdict.rows:
            gate = row.gate.model_dump()
            rows.append({"gates": verdict.name, **asdict(row), "gate": gate})
            lines.append(_line(row))
        ending = "all gates passed" if verdict.passed else "a gate failed"
        lines.append(f"{verdict.name}: {ending}")
    return Output({"passed": passed, "rows": rows}, lines, GOOD if passed else GATE_FAILED)


def _line(row: GateResult) -> str:
    """Return a result for people."""
    gate = row.gate
    mark = "pass" if row.passed else "FAIL"
    metric = f"{gate.metric} / {gate.baseline}" if gate.baseline else gate.metric
    if row.reason is not None:
        return f"{mark}  {metric}: {row.reason}"
    value = "missing" if row.value is None else f"{row.value:.6g}"
    sign = "≤" if gate.direction == "at-most" else "≥"
    return f"{mark}  {metric}: {value} {sign} {gate.limit:g}"
