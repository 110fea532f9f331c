"""Word and character error rates, at corpus level: sum errors, sum tokens, divide once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.report.evaluation import RateCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Edits", "Unit", "count_edits", "summarize_edits"]

Unit: TypeAlias = Literal["word", "character"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The cheapest way from one transcript to what was heard."""

    substitutions: int
    insertions: int
    deletions: int
    tokens: int
    """Words or characters in the transcript; spaces are characters."""

    @property
    def errors(self) -> int:
        """All edits together."""
        return self.substitutions + self.insertions + self.deletions


def count_edits(transcripts: Sequence[str], hypotheses: Sequence[str], unit: Unit) -> list[Edits]:
    """Return the edits of each utterance; both sides are normalised already.

    Raises:
        EvaluationError: A transcript has no words; its rate would be a division by zero.
        MissingExtraError: jiwer is not installed.
        ValueError: The two sequences differ in length.
    """
    pairs = list(zip(transcripts, hypotheses, strict=True))
    return [_edits(transcript, hypothesis, unit) for transcript, hypothesis in pairs]


def summarize_edits(edits: Sequence[Edits]) -> RateCounts:
    """Return the corpus-level rate.

    Raises:
        EvaluationError: There are no utterances.
    """
    if not edits:
        raise EvaluationError("no utterances to compute an error rate from")
    tokens = sum(row.tokens for row in edits)
    return RateCounts(
        rate=sum(row.errors for row in edits) / tokens,
        substitutions=sum(row.substitutions for row in edits),
        insertions=sum(row.insertions for row in edits),
        deletions=sum(row.deletions for row in edits),
        reference_tokens=tokens,
        above_half=sum(2 * row.errors > row.tokens for row in edits) / len(edits),
    )


def _edits(transcript: str, hypothesis: str, unit: Unit) -> Edits:
    try:
        import jiwer
    except ImportError as error:
        raise MissingExtraError("jiwer", "evaluate") from error
    if not transcript.strip():
        raise EvaluationError(f"the transcript {transcript!r} has no words to compare with")
    found = (
        jiwer.process_words(transcript, hypothesis)
        if unit == "word"
        else jiwer.process_characters(transcript, hypothesis)
    )
    return Edits(
        substitutions=found.substitutions,
        insertions=found.insertions,
        deletions=found.deletions,
        tokens=found.hits + found.substitutions + found.deletions,
    )
