"""The report and verdicts of gates as text: Markdown of GitHub, JUnit, annotations.

Markdown is fit for a job summary or a pull-request comment.
"""

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

from tts_compress.evaluation import Evaluation, GateResult, Verdict, blame, formatting
from tts_compress.evaluation.metric import find_figure
from tts_compress.evaluation.result import RECORDINGS
from tts_compress.report import summary
from tts_compress.report.summary import cautions, most_added_errors, verdict

# Everything with a meaning inside a table cell: `<` and `&` would start HTML, `$` a formula, and an
# underscore emphasis unless it stands between letters, as in `en_US`.
_SPECIAL = re.compile(r"([\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_]))")
# Text that GitHub makes a link of: a mention, a reference, an address.
_LIVE = re.compile(r"(?<=[@#])(?=\w)|(?<=://)|(?<=www\.)", re.IGNORECASE)
_NOTHING = "&#8203;"
"""A space without width."""

_CELL = 120  # characters; a longer text is cut, the HTML and JSON reports have all of it
_WORST = 10


def render_markdown(evaluation: Evaluation) -> str:
    """Return the report as Markdown; texts are escaped, long ones are cut."""
    candidate, reference = evaluation.candidate, evaluation.reference
    floors = [
        (
            name,
            formatting.points(rate.delta),
            formatting.interval(rate.interval),
            "" if distance is None else formatting.decibels(distance),
        )
        for name, rate, distance in summary.floor_rows(evaluation)
    ]
    facts = [
        (title, label, value)
        for title, values in summary.provenance(evaluation)
        for label, value in values.items()
    ]
    blocks = [
        f"# {_cell(candidate.spec)} ({_cell(candidate.scheme)}) against {_cell(reference.spec)}",
        f"**{summary.verdict(evaluation)}**",
        "\n".join(f"> {escape(caution)}" for caution in summary.cautions(evaluation)),
        "\n".join(f"- {escape(note)}" for note in summary.notes(evaluation)),
        measurements(evaluation),
        f"## Floors\n\n{summary.floor_caption(evaluation)}.",
        table(
            "lrrr",
            ("Comparison", "Word error rate", "95 % interval, points", "Log-mel distance"),
            floors,
        ),
        *_blame(evaluation),
        "## Utterances with the most added word errors",
        _worst(evaluation),
        "## How to read this",
        "\n".join(
            textwrap.fill(f"- **{name}**: {meaning}", 100, subsequent_indent="  ")
            for name, meaning in summary.terms(evaluation).items()
        ),
        "## Provenance",
        "<details><summary>Models, suite and machine</summary>",
        table("lll", ("About", "What", "Value"), facts),
        "</details>",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def measurements(evaluation: Evaluation) -> str:
    """Return the table of all measurements."""
    return table("lrrl", *summary.measurement_cells(evaluation))


def _blame(evaluation: Evaluation) -> list[str]:
    damage = evaluation.blame
    if damage is None:
        return []
    header, rows = blame.blame_table(damage)
    sentence = escape(blame.blame_sentence(damage))
    return [f"## {blame.TITLE}", sentence, table(f"l{'r' * (len(header) - 1)}", header, rows)]


def _worst(evaluation: Evaluation) -> str:
    if not evaluation.utterances:
        return "There are no utterances."
    if evaluation.suite.recognizer_name == "none":
        return "Words were not judged."
    spoken_by = any(u.speaker is not None for u in evaluation.utterances)
    rows = [
        (
            u.text,
            *([u.speaker or ""] if spoken_by else []),
            str(u.seed),
            *(
                summary.heard(u.transcript, spoken.hypothesis)
                for spoken in (u.reference, u.candidate)
            ),
            f"{u.reference.word_errors} to {u.candidate.word_errors} of {u.words}",
            formatting.decibels(u.log_mel_distance_db),
        )
        for u in summary.most_added_errors(evaluation)[:_WORST]
        if u.added_errors > 0
    ]
    if not rows:
        return "No utterance has more word errors than its reference."
    by = evaluation.suite.recognizer_name or "the recognizer"
    both = (f"{name}, as (mis)heard by {_cell(by)}" for name in ("Reference", "Compressed"))
    header = ("Seed", *both, "Errors", "Log-mel distance")
    named = ("Text", "Speaker") if spoken_by else ("Text",)
    return table(f"{'l' * len(named)}rllrr", (*named, *header), rows)


def table(align: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are escaped, long ones are cut.

    Args:
        align: `l` or `r` for each column.
        header: Titles of the columns.
        rows: Texts of the cells.
    """
    rule = "|".join({"l": " :-- ", "r": " --: "}[side] for side in align)
    lines = [f"| {' | '.join(header)} |", f"|{rule}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _cell(text: str) -> str:
    return escape(formatting.one_line(text, _CELL))


def escape(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line, with nothing to click."""
    return _LIVE.sub(_NOTHING, _SPECIAL.sub(r"\\\1", formatting.plain(text)))


def result_line(row: GateResult, evaluation: Evaluation) -> str:
    """Return a gate's result for people: of one that failed also where, and what to do."""
    if row.reason is not None:
        return f"FAIL  {_metric(row)}: {row.reason}"
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
    rows = [(judged.name, row) for judged in verdicts for row in judged.rows]
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
        "\n".join(f"- {escape(conclusion(judged))}" for judged in verdicts),
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
    root = ElementTree.Element(
        "testsuites", _counts([row for judged in verdicts for row in judged.rows])
    )
    root.set("name", "tts-compress")
    for judged in verdicts:
        suite = ElementTree.SubElement(root, "testsuite", _counts(judged.rows), name=judged.name)
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in facts.items():
            ElementTree.SubElement(properties, "property", name=name, value=formatting.plain(value))
        for row in judged.rows:
            name = formatting.plain(f"{row.gate.metric} {_limit(row)}")
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"gates.{judged.name}", name=name, time="0"
            )
            if not row.passed:
                line = formatting.plain(result_line(row, evaluation))
                ElementTree.SubElement(case, "failure", message=line).text = line
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def annotation_lines(evaluation: Evaluation, verdicts: Sequence[Verdict]) -> list[str]:
    """Return a workflow command of GitHub for each gate that failed."""
    return [
        f"::error title=tts-compress gate {_escape(judged.name, ':,')}::"
        f"{_escape(result_line(row, evaluation).removeprefix('FAIL').strip())}"
        for judged in verdicts
        for row in judged.rows
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
        worst.sort(
            key=lambda utterance: abs(utterance.candidate.seconds - utterance.reference.seconds),
            reverse=True,
        )
    elif "words" not in row.gate.groups:
        worst.sort(key=lambda utterance: utterance.log_mel_distance_db, reverse=True)
    finding: Any = evaluation  # damage has its place
    for part in row.gate.metric.split(".")[:-1]:
        finding = getattr(finding, part, None)
    damaged = (getattr(finding, "index", None), getattr(finding, "seed", None))
    worst.sort(key=lambda utterance: (utterance.index, utterance.seed) != damaged)
    text = f'; worst text: "{formatting.one_line(worst[0].text, 80)}"' if worst else ""
    if formatting.is_finite(at_s := getattr(finding, "at_s", None)) and at_s:
        text += f", seed {damaged[1]}, at {at_s:.2f} s"
    option = "--port" if evaluation.reference.family == RECORDINGS else "--blame"
    return f"{text}; listen to it in report.html; find the part with `evaluate {option}`"


def _counts(rows: Sequence[GateResult]) -> dict[str, str]:
    failures = sum(not row.passed for row in rows)
    return {"tests": str(len(rows)), "failures": str(failures), "errors": "0", "skipped": "0"}


def _escape(text: str, more: str = "") -> str:
    """Return a text with the signs encoded that end a part of a workflow command."""
    for sign in f"%\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
