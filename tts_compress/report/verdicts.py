"""Verdicts of gates: for people, a job summary or comment, JUnit, and annotations of GitHub."""

from collections.abc import Sequence
from xml.etree import ElementTree

from tts_compress.evaluation import Evaluation, GateResult, Verdict, formatting
from tts_compress.report.markdown import escape, measurements, table
from tts_compress.report.summary import cautions, verdict


def result_line(row: GateResult) -> str:
    """Return a gate's result for people."""
    mark = "pass" if row.passed else "FAIL"
    if row.reason is not None:
        return f"{mark}  {_metric(row)}: {row.reason}"
    return f"{mark}  {_metric(row)}: {_value(row)} {_limit(row)}"


def render_verdicts(evaluation: Evaluation, verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts and measurements as Markdown for a job summary or a comment.

    What failed stands first; the limits that were kept are folded away.
    """
    rows = [(one.name, row) for one in verdicts for row in one.rows]
    failed = [(name, row) for name, row in rows if not row.passed]
    kept = [(name, row) for name, row in rows if row.passed]
    counted = f"{len(failed)} of {len(rows)}" if failed else f"all {len(rows)}"
    title = f"{evaluation.candidate.spec} ({evaluation.candidate.scheme})"
    blocks = [
        f"## {escape(formatting.one_line(title, 120))}: "
        f"{counted} gates {'failed' if failed else 'passed'}",
        _gates(failed),
        escape(verdict(evaluation)),
        "\n".join(f"> {escape(caution)}" for caution in cautions(evaluation)),
        measurements(evaluation),
        *_folded(f"Limits that were kept: {len(kept)}", _gates(kept)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_junit(evaluation: Evaluation, verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as JUnit XML: a suite for each file of gates, a case for each gate."""
    facts = {
        "reference": evaluation.reference.spec,
        "candidate": evaluation.candidate.spec,
        "suite": evaluation.suite.name,
        "recognizer": evaluation.suite.recognizer,
    }
    root = ElementTree.Element("testsuites", _counts([row for one in verdicts for row in one.rows]))
    root.set("name", "tts-compress")
    for one in verdicts:
        suite = ElementTree.SubElement(root, "testsuite", _counts(one.rows), name=one.name)
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in facts.items():
            ElementTree.SubElement(properties, "property", name=name, value=formatting.plain(value))
        for row in one.rows:
            name = formatting.plain(f"{_metric(row)} {_limit(row)}")
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"gates.{one.name}", name=name, time="0"
            )
            if not row.passed:
                line = formatting.plain(result_line(row))
                ElementTree.SubElement(case, "failure", message=line).text = line
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def annotation_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a workflow command of GitHub for each gate that failed."""
    return [
        f"::error title={_escape_property(f'tts-compress gate {one.name}')}::"
        f"{_escape_data(result_line(row).removeprefix('FAIL').strip())}"
        for one in verdicts
        for row in one.rows
        if not row.passed
    ]


def _gates(rows: Sequence[tuple[str, GateResult]]) -> str:
    cells = [
        (name, _metric(row), row.reason or _value(row), "" if row.reason else _limit(row))
        for name, row in rows
    ]
    return table("llrr", ("Gates", "Metric", "Value", "Limit"), cells) if cells else ""


def _folded(summary: str, content: str) -> list[str]:
    return [f"<details><summary>{summary}</summary>", content, "</details>"] if content else []


def _metric(row: GateResult) -> str:
    gate = row.gate
    return f"{gate.metric} / {gate.baseline}" if gate.baseline else gate.metric


def _value(row: GateResult) -> str:
    if row.value is None:
        return "missing"
    if row.gate.kind != "change":
        return f"{row.value:.6g}"
    end = "begins" if row.gate.direction == "at-most" else "ends"
    change = f"interval of the change {end} at" if row.gate.interval else "a change of"
    return f"{row.now:.6g}, before {row.before:.6g}; {change} {row.value:+.6g}"


def _limit(row: GateResult) -> str:
    return f"{'≤' if row.gate.direction == 'at-most' else '≥'} {row.gate.limit:g}"


def _counts(rows: Sequence[GateResult]) -> dict[str, str]:
    failures = sum(not row.passed for row in rows)
    return {"tests": str(len(rows)), "failures": str(failures), "errors": "0", "skipped": "0"}


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
