"""The report as GitHub-flavoured Markdown, fit for a job summary or a pull-request comment."""

import re
import textwrap
from collections.abc import Sequence

from tts_compress.evaluation import blame, formatting
from tts_compress.evaluation.result import Evaluation
from tts_compress.report import summary

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
    spoken_by = any(u.speaker is not None for u in evaluation.utterances)
    rows = [
        (
            u.text,
            *([u.speaker or ""] if spoken_by else []),
            str(u.seed),
            *(summary.heard(u.transcript, one.hypothesis) for one in (u.reference, u.candidate)),
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
