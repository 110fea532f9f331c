"""Verdicts of gates: for people, a job summary or comment, JUnit, and annotations of GitHub."""

from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

from tts_compress.evaluation import Evaluation, GateResult, Verdict, formatting
from tts_compress.evaluation.metric import find_figure
from tts_compress.evaluation.result import RECORDINGS
from tts_compress.report.markdown import escape, measurements, table
from tts_compress.report.summary import cautions, most_added_errors, verdict


def result_line(row: GateResult, evaluation: Evaluation) -> str:
    """Return a gate's result for people: of one that failed also where, and what to do."""
    if row.reason is not None:
        return f"{'pass' if row.passed else 'FAIL'}  {_metric(row)}: {row.reason}"
    if row.passed:
        return f"pass  {_metric(row)}: {_value(row)} ({_limit(row)})"
    return f"FAIL  {_metric(row)}: {_value(row)}; needs {_limit(row)}{_advice(row, evaluation)}"


def conclusion(verdict: Verdict) -> str:
    """Return the outcome of a file of gates, and how much it lets pass on words."""
    allowed = [
        f"; allowed: {_metric(row)}, {_limit(row)}"
        for row in verdict.rows
        if "words" in row.gate.groups and row.gate.kind != "change"
    ]
    return f"{verdict.name}: {_outcome(verdict.rows)}{''.join(allowed)}"


def render_verdicts(evaluation: Evaluation, verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts and measurements as Markdown for a job summary or a comment.

    What failed stands first; the limits that were kept are folded away.
    """
    rows = [(one.name, row) for one in verdicts for row in one.rows]
    failed = [(name, row) for name, row in rows if not row.passed]
    kept = [(name, row) for name, row in rows if row.passed]
    title = f"{evaluation.candidate.spec} ({evaluation.candidate.scheme})"
    blocks = [
        f"## {escape(formatting.one_line(title, 120))}: {_outcome([row for _, row in rows])}",
        _gates(failed),
        *dict.fromkeys(
            escape(f"Failed{_advice(row, evaluation)}.")
            for _, row in failed
            if _advice(row, evaluation)
        ),
        "\n".join(f"- {escape(conclusion(one))}" for one in verdicts),
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
            name = formatting.plain(f"{row.gate.metric} {_limit(row)}")
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"gates.{one.name}", name=name, time="0"
            )
            if not row.passed:
                line = formatting.plain(result_line(row, evaluation))
                ElementTree.SubElement(case, "failure", message=line).text = line
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def annotation_lines(evaluation: Evaluation, verdicts: Sequence[Verdict]) -> list[str]:
    """Return a workflow command of GitHub for each gate that failed."""
    return [
        f"::error title={_escape_property(f'tts-compress gate {one.name}')}::"
        f"{_escape_data(result_line(row, evaluation).removeprefix('FAIL').strip())}"
        for one in verdicts
        for row in one.rows
        if not row.passed
    ]


def _outcome(rows: Sequence[GateResult]) -> str:
    failed = sum(not row.passed for row in rows)
    return f"{failed} of {len(rows)} gates failed" if failed else f"all {len(rows)} gates passed"


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
    path = f"{gate.metric} / {gate.baseline}" if gate.baseline else gate.metric
    name = find_figure(gate.metric).name
    return path if name == gate.metric else f"{name} ({path})"


def _value(row: GateResult) -> str:
    if row.value is None:
        return "not measured"
    show = _show(row)
    if row.gate.kind != "change":
        return show(row.value)
    end = "begins" if row.gate.direction == "at-most" else "ends"
    change = f"interval of the change {end} at" if row.gate.interval else "a change of"
    return f"{show(row.now)}, before {show(row.before)}; {change} {show(row.value)}"


def _limit(row: GateResult) -> str:
    return f"{row.gate.direction.replace('-', ' ')} {_show(row)(row.gate.limit)}"


def _show(row: GateResult) -> Callable[[float | None], str]:
    """Return the format of a gate's values: rounded only where that hides no failure."""
    gate = row.gate
    show = formatting.percent if gate.baseline else find_figure(gate.metric).show
    hides = not row.passed and show(row.value) == show(gate.limit)
    return formatting.number if hides else show


def _advice(row: GateResult, evaluation: Evaluation) -> str:
    """Return where to listen, and how to find the part that did it; nothing for size and speed."""
    if row.reason is not None or row.value is None or not row.gate.groups - {"cost"}:
        return ""
    worst = most_added_errors(evaluation)
    if row.gate.metric.startswith("duration."):
        worst.sort(key=lambda one: abs(one.candidate.seconds - one.reference.seconds), reverse=True)
    elif "words" not in row.gate.groups:
        worst.sort(key=lambda one: one.log_mel_distance_db, reverse=True)
    finding: Any = evaluation  # damage has its place
    for part in row.gate.metric.split(".")[:-1]:
        finding = getattr(finding, part, None)
    place = (getattr(finding, "index", None), getattr(finding, "seed", None))
    worst.sort(key=lambda one: (one.index, one.seed) != place)
    text = f'; worst text: "{formatting.one_line(worst[0].text, 80)}"' if worst else ""
    if formatting.is_finite(at_s := getattr(finding, "at_s", None)) and at_s:
        text += f", seed {place[1]}, at {at_s:.2f} s"
    option = "--port" if evaluation.reference.family == RECORDINGS else "--blame"
    return f"{text}; listen to it in report.html; find the part with `evaluate {option}`"


def _counts(rows: Sequence[GateResult]) -> dict[str, str]:
    failures = sum(not row.passed for row in rows)
    return {"tests": str(len(rows)), "failures": str(failures), "errors": "0", "skipped": "0"}


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
