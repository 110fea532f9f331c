"""The report as GitHub-flavoured Markdown, fit for a job summary or a pull-request comment."""

import re
import textwrap
from collections.abc import Sequence

from tts_compress.evaluation import formatting
from tts_compress.evaluation.result import Evaluation, Utterance
from tts_compress.report.tables import floor_rows, provenance, summary_rows, terms
from tts_compress.report.verdict import cautions, verdict

# Everything with a meaning inside a table cell: `<` and `&` would start HTML, `$` a formula, and an
# underscore emphasis unless it stands between letters, as in `en_US`.
_SPECIAL = re.compile(r"([\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_]))")
_CELL = 120  # characters; a longer text is cut, the HTML and JSON reports have all of it
_WORST = 10


def render_markdown(evaluation: Evaluation) -> str:
    """Return the report as Markdown; texts are escaped, long ones are cut."""
    candidate, reference = evaluation.candidate, evaluation.reference
    blocks = [
        f"# {_cell(candidate.spec)} ({_cell(candidate.scheme)}) against {_cell(reference.spec)}",
        f"**{verdict(evaluation)}**",
        "\n".join(f"> {_escape(caution)}" for caution in cautions(evaluation)),
        _summary(evaluation),
        "## Floors",
        _floors(evaluation),
        "## Utterances with the most added word errors",
        _worst(evaluation.utterances),
        "## How to read this",
        "\n".join(
            textwrap.fill(f"- **{term.name}**: {term.meaning}", 100, subsequent_indent="  ")
            for term in terms(evaluation)
        ),
        "## Provenance",
        _provenance(evaluation),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _summary(evaluation: Evaluation) -> str:
    rows = [(r.label, r.reference, r.candidate, r.change) for r in summary_rows(evaluation)]
    return _table(("Measurement", "Reference", "Compressed", "Change"), rows, align="lrrl")


def _floors(evaluation: Evaluation) -> str:
    rows = [
        (
            name,
            formatting.points(rate.delta),
            formatting.interval(rate.interval),
            "" if distance is None else formatting.decibels(distance),
        )
        for name, rate, distance in floor_rows(evaluation)
    ]
    header = ("Comparison", "Word error rate", "95 % interval, points", "Log-mel distance")
    return _table(header, rows, align="lrrr")


def _worst(utterances: Sequence[Utterance]) -> str:
    if not utterances:
        return "There are no utterances."
    added = sorted(utterances, key=lambda u: (-_added(u), u.index, u.seed))[:_WORST]
    rows = [_utterance(utterance) for utterance in added if _added(utterance) > 0]
    if not rows:
        return "No utterance has more word errors than its reference."
    header = ("Text", "Seed", "Reference heard", "Compressed heard", "Errors", "Log-mel distance")
    return _table(header, rows, align="lrllrr")


def _added(utterance: Utterance) -> int:
    return utterance.candidate.word_errors - utterance.reference.word_errors


def _utterance(u: Utterance) -> tuple[str, ...]:
    errors = f"{u.reference.word_errors} to {u.candidate.word_errors} of {u.words}"
    heard = (u.reference.hypothesis, u.candidate.hypothesis)
    return (u.text, str(u.seed), *heard, errors, formatting.decibels(u.log_mel_distance_db))


def _provenance(evaluation: Evaluation) -> str:
    rows = [
        (title, label, value)
        for title, facts in provenance(evaluation)
        for label, value in facts.items()
    ]
    table = _table(("About", "What", "Value"), rows, align="lll")
    return f"<details><summary>Models, suite and machine</summary>\n\n{table}\n\n</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, align: str) -> str:
    rule = "|".join({"l": " :-- ", "r": " --: "}[side] for side in align)
    lines = [f"| {' | '.join(header)} |", f"|{rule}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _cell(text: str) -> str:
    return _escape(formatting.one_line(text, _CELL))


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
