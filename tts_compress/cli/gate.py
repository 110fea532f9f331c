"""`tts-compress gate`: pass or fail a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GATE_FAILED, GOOD, add_json

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("gate", help="pass or fail a report; exits 1 when it fails")
    parser.add_argument("report", type=Path, help="report.json, or its directory")
    parser.add_argument("--gates", default="default", help="a gate file's name or TOML")
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tts_compress.evaluate import check, read_gates
    from tts_compress.report import read_report
    from tts_compress.terminal import show, show_json

    verdict = check(read_report(options.report), read_gates(options.gates))
    if options.json:
        rows = [{**asdict(row), "gate": row.gate.model_dump()} for row in verdict.rows]
        show_json({"passed": verdict.passed, "rows": rows})
    else:
        for row in verdict.rows:
            value = "missing" if row.value is None else f"{row.value:.6g}"
            sign = "≤" if row.gate.direction == "at-most" else "≥"
            mark = "pass" if row.passed else "FAIL"
            against = f" / {row.gate.baseline}" if row.gate.baseline else ""
            show(f"{mark}  {row.gate.metric}{against}: {value} {sign} {row.gate.limit:g}")
        show("all gates passed" if verdict.passed else "a gate failed")
    return GOOD if verdict.passed else GATE_FAILED
