"""The report as GitHub-flavoured Markdown, fit for a job summary or a pull-request comment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tts_compress.report import judgement, wording
from tts_compress.report.provenance import provenance
from tts_compress.report.summary import summary_rows
from tts_compress.report.terms import terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tts_compress.report.evaluation import ErrorRate, Evaluation, Utterance

__all__ = ["render_markdown"]

# Everything with a meaning inside a table cell: `<` and `&` would start HTML, `$` a formula, and an
# underscore emphasis unless it stands between letters, as in `en_US`.
_SPECIAL = re.compile(r"([\\`*\[\]|~$<>&]|(?<![^\W_])_|_(?![^\W_]))")
_CELL = 120  # characters; a longer text is cut, the HTML and JSON reports have all of it
_WORST = 10

_HOW_TO_READ = """\
- **Word error rate**: share of the words that the recognizer got wrong; lower is better. The
  change is compressed minus reference over the same texts and seeds, and the interval holds 95 %
  of what resampling the texts gives. With zero inside it, the suite shows no difference; more texts
  narrow it.
- **Floors**: what the same comparison finds where nothing was compressed. A change below them is
  noise.
- **Latency, mean**: the geometric mean of all timed runs, which take turns. The change is the ratio
  of the two means, and the interval holds 95 % of what resampling the pairs of runs gives. With one
  inside it, the runs show no difference.
- **Real-time factor**: synthesis seconds per second of audio; below 1 is faster than speech.
- **Log-mel distance**: how far the audio is from the reference's with the same noise; 0 dB is the
  same sound. Sharpest where the timing is the same: there every frame had the same noise.
"""


def render_markdown(evaluation: Evaluation) -> str:
    """Return the report as Markdown; texts are escaped, long ones are cut."""
    candidate, reference = evaluation.candidate, evaluation.reference
    blocks = [
        f"# {_cell(candidate.spec)} ({_cell(candidate.scheme)}) against {_cell(reference.spec)}",
        f"**{judgement.verdict(evaluation)}**",
        "\n".join(f"> {_escape(caution)}" for caution in judgement.cautions(evaluation)),
        _summary(evaluation),
        "## Floors",
        _floors(evaluation),
        "## Utterances with the most added word errors",
        _worst(evaluation.utterances),
        "## How to read this",
        "\n".join(
            (_HOW_TO_READ.rstrip(), *(f"- **{t.name}**: {t.meaning}" for t in terms(evaluation)))
        ),
        "## Provenance",
        _provenance(evaluation),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _summary(evaluation: Evaluation) -> str:
    rows = [(r.label, r.reference, r.candidate, r.change) for r in summary_rows(evaluation)]
    return _table(("Measurement", "Reference", "Compressed", "Change"), rows, align="lrrl")


def _floors(evaluation: Evaluation) -> str:
    floors = evaluation.floors
    distance = evaluation.signal.log_mel_distance_db
    rows = [
        ("Reference against compressed", *_rate(evaluation.wer), wording.decibels(distance)),
        (
            "Reference against itself, other seeds",
            *_rate(floors.other_seeds),
            wording.decibels(floors.other_seeds_log_mel_distance_db),
        ),
        ("Recognizer, inaudibly changed audio", *_rate(floors.recognizer), ""),
    ]
    header = ("Comparison", "Word error rate", "95 % interval, points", "Log-mel distance")
    return _table(header, rows, align="lrrr")


def _rate(rate: ErrorRate) -> tuple[str, str]:
    return wording.points(rate.delta), wording.interval(rate.interval)


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
    return (u.text, str(u.seed), *heard, errors, wording.decibels(u.log_mel_distance_db))


def _provenance(evaluation: Evaluation) -> str:
    rows = [
        (section.title, fact.label, fact.value)
        for section in provenance(evaluation)
        for fact in section.facts
    ]
    table = _table(("About", "What", "Value"), rows, align="lll")
    return f"<details><summary>Models, suite and machine</summary>\n\n{table}\n\n</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, align: str) -> str:
    rule = "|".join({"l": " :-- ", "r": " --: "}[side] for side in align)
    return "\n".join((_line(header), f"|{rule}|", *_lines(rows)))


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield _line([_cell(value) for value in row])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return _escape(wording.one_line(text, _CELL))


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
