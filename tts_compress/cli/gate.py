"""`tts-compress gate`: pass or fail a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GATE_FAILED, GOOD, add_json

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands
    from tts_compress.evaluation import GateResult, Verdict

_DESCRIPTION = """
Pass or fail a report. `default` and `strict` judge quality (words, fidelity, durations, health),
which is the same on a busy machine; `cost` judges size and speed. Gates on words fail where the
recognizer mishears more than half of the reference's own: nothing was judged then. The exit code is
1 where a gate fails.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "gate", help="pass or fail a report; exits 1 when it fails", description=_DESCRIPTION
    )
    parser.add_argument("report", type=Path, help="report.json, or its directory")
    parser.add_argument(
        "--gates",
        action="append",
        help="default, strict, cost, or your TOML; may be repeated (default)",
    )
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.evaluation import check, read_gates, read_report
    from tts_compress.terminal import show, show_json

    report = read_report(options.report)
    verdicts = [check(report, read_gates(name)) for name in options.gates or ["default"]]
    passed = all(verdict.passed for verdict in verdicts)
    if options.json:
        rows = [_as_json(verdict, row) for verdict in verdicts for row in verdict.rows]
        show_json({"passed": passed, "rows": rows})
    else:
        for verdict in verdicts:
            for row in verdict.rows:
                show(_line(row))
            ending = "all gates passed" if verdict.passed else "a gate failed"
            show(f"{verdict.name}: {ending}")
    return GOOD if passed else GATE_FAILED


def _as_json(verdict: Verdict, row: GateResult) -> dict[str, object]:
    from dataclasses import asdict

    return {"gates": verdict.name, **asdict(row), "gate": row.gate.model_dump()}


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
