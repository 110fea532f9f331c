"""The utterances as rows of the page: words marked, audio addressed, worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from tts_compress.report import wording
from tts_compress.report.alignment import Span, align

if TYPE_CHECKING:
    from tts_compress.report.evaluation import Evaluation, Speech, Utterance

__all__ = ["Rendering", "UtteranceRow", "utterance_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What one model said."""

    name: str
    spans: tuple[Span, ...]
    """The hypothesis against the transcript."""

    errors: int
    seconds: str
    audio: str | None
    """A relative URL, or None where the audio was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceRow:
    """One text and seed, spoken by both models."""

    utterance: Utterance
    added: int
    """Word errors of the candidate minus those of the reference."""

    changed: bool
    """Whether the recognizer heard different words."""

    spelled_out: bool
    """Whether the transcript has other words than the text, such as `ten` for `10`."""

    lengthening: float | None
    """Relative change of the length, -0.02 for two per cent shorter; None where unknown."""

    renderings: tuple[Rendering, Rendering]


def utterance_rows(evaluation: Evaluation) -> tuple[UtteranceRow, ...]:
    """Return the rows, those with the most added word errors first."""
    rows = [_row(utterance) for utterance in evaluation.utterances]
    rows.sort(key=lambda row: (-row.added, row.utterance.index, row.utterance.seed))
    return tuple(rows)


def _row(utterance: Utterance) -> UtteranceRow:
    reference, candidate = utterance.reference, utterance.candidate
    known = wording.is_finite(reference.seconds) and reference.seconds > 0
    lengthening = candidate.seconds / reference.seconds - 1 if known else None
    return UtteranceRow(
        utterance=utterance,
        added=candidate.word_errors - reference.word_errors,
        spelled_out=_letters(utterance.text) != _letters(utterance.transcript),
        changed=reference.hypothesis != candidate.hypothesis,
        lengthening=lengthening if wording.is_finite(lengthening) else None,
        renderings=(
            _rendering("Reference", utterance.transcript, reference),
            _rendering("Compressed", utterance.transcript, candidate),
        ),
    )


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def _rendering(name: str, transcript: str, speech: Speech) -> Rendering:
    known = wording.is_finite(speech.seconds)
    return Rendering(
        name=name,
        spans=align(wording.plain(transcript), wording.plain(speech.hypothesis)),
        errors=speech.word_errors,
        seconds=f"{speech.seconds:.2f} s" if known else wording.MISSING,
        audio=_relative_url(speech.audio),
    )


def _relative_url(path: str | None) -> str | None:
    """Return the URL of a file beside or below the report, or None.

    A report is read by others than its writer: no path in it makes a browser leave the folder.
    Quoting leaves no colon, so that nothing is taken for a scheme.
    """
    if not path:
        return None
    parts = path.split("/")
    if "\\" in path or ".." in parts or parts[0] == "":
        return None
    return quote(path)
