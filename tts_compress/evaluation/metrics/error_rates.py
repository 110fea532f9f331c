"""Word and character error rates, their difference, and their baselines where nothing changed.

Rates are corpus-level: sum errors, sum tokens, divide once. The interval of a difference is by
paired bootstrap over texts (Bisani and Ney 2004).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.bootstrap import paired_interval
from tts_compress.evaluation.metric import Audios, Headline, Metric, Pair, Record, Row, Term, Trend
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.spectra import log_mel_distance

Unit: TypeAlias = Literal["word", "character"]

MISHEARD_AT_MOST = 0.5
"""Word error rate of a reference that is understood. Above it, insertions and guesses dominate,
and a difference is meaningless."""


class RateCounts(Record):
    """Corpus-level errors of one model, summed over utterances before any division."""

    rate: float
    substitutions: int
    insertions: int
    deletions: int
    reference_tokens: int
    """Words (WER) or characters (CER) in the transcripts."""

    above_half: float
    """Share of utterances whose own rate is above 50 %."""


class ErrorRate(Record):
    """Word or character error rate of both models, and their difference."""

    reference: float
    candidate: float
    delta: float
    """Candidate minus reference; positive is worse."""

    interval: tuple[float, float]
    """95 % paired bootstrap interval of `delta`, resampling texts."""

    counts: Pair[RateCounts]


class Baselines(Record):
    """Results of the same comparison where nothing was compressed; `floors` in the document."""

    other_seeds: ErrorRate
    """Reference against reference with other noise."""

    other_seeds_log_mel_distance_db: float
    recognizer: ErrorRate
    """Reference against an inaudibly changed copy of its own audio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The cheapest way from a transcript to a hypothesis."""

    substitutions: int
    insertions: int
    deletions: int
    tokens: int
    """Words or characters in the transcript; spaces are characters."""

    @property
    def errors(self) -> int:
        """All edits together."""
        return self.substitutions + self.insertions + self.deletions


def count_edits(transcript: str, hypothesis: str, unit: Unit) -> Edits:
    """Return the edits of one utterance; both sides are normalised already.

    Raises:
        EvaluationError: The transcript has no words; its rate would be a division by zero.
        MissingExtraError: jiwer is not installed.
    """
    try:
        import jiwer
    except ImportError as error:
        raise MissingExtraError("jiwer", "evaluate") from error
    if not transcript.strip():
        raise EvaluationError(f"the transcript {transcript!r} has no words to compare with")
    process = jiwer.process_words if unit == "word" else jiwer.process_characters
    found = process(transcript, hypothesis)
    return Edits(
        substitutions=found.substitutions,
        insertions=found.insertions,
        deletions=found.deletions,
        tokens=found.hits + found.substitutions + found.deletions,
    )


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


def compare_rates(
    reference: Sequence[Edits], candidate: Sequence[Edits], blocks: Sequence[Hashable]
) -> ErrorRate:
    """Return both corpus-level rates and the interval of their difference.

    Texts are resampled, each with all its seeds: renderings of one text share its difficulty, and
    treating them as independent would make the interval too narrow.

    Args:
        reference: Edits of each utterance of the reference.
        candidate: Edits of the same utterances of the candidate.
        blocks: The text that each utterance speaks.

    Raises:
        EvaluationError: There are no utterances.
        ValueError: The sequences differ in length, or transcripts differ within a pair.
    """
    counts = Pair(reference=summarize_edits(reference), candidate=summarize_edits(candidate))
    differences, tokens = _block_sums(reference, candidate, blocks)
    return ErrorRate(
        reference=counts.reference.rate,
        candidate=counts.candidate.rate,
        # The same arithmetic as for the resamples: no last digit puts it outside its interval.
        delta=float(differences.sum() / tokens.sum()),
        interval=paired_interval(differences, tokens),
        counts=counts,
    )


def _block_sums(
    reference: Sequence[Edits], candidate: Sequence[Edits], blocks: Sequence[Hashable]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the error difference and the tokens of each text, its utterances summed."""
    differences: dict[Hashable, int] = {}
    tokens: dict[Hashable, int] = {}
    for before, after, block in zip(reference, candidate, blocks, strict=True):
        if before.tokens != after.tokens:
            raise ValueError(
                f"not a pair: transcripts of {before.tokens} and {after.tokens} tokens"
            )
        differences[block] = differences.get(block, 0) + after.errors - before.errors
        tokens[block] = tokens.get(block, 0) + before.tokens
    return np.array(list(differences.values())), np.array(list(tokens.values()))


def _compare(unit: Unit, role: str, run: Run) -> ErrorRate:
    """Compare the reference with other audio of the pairs."""
    reference, candidate = (
        [count_edits(pair.transcript, run.hypotheses[pair.audio[name]], unit) for pair in run.pairs]
        for name in ("reference", role)
    )
    return compare_rates(reference, candidate, [pair.index for pair in run.pairs])


def _observe_baseline(audios: Audios) -> float:
    return log_mel_distance(audios.reference, audios.other_seed)


def _baselines(run: Run) -> Baselines:
    return Baselines(
        other_seeds=_compare("word", "other_seed", run),
        other_seeds_log_mel_distance_db=float(np.mean(run.observations("floors"))),
        recognizer=_compare("word", "disturbed", run),
    )


def rate_trend(rate: ErrorRate) -> Trend:
    """Return the direction of an error rate: a change only where its interval excludes zero."""
    low, high = rate.interval
    if not all(formatting.is_finite(value) for value in (rate.delta, low, high)):
        return "unknown"
    if low > 0:
        return "worse"
    return "better" if high < 0 else "same"


def rate_judgement(rate: ErrorRate) -> str:
    """Return the conclusion that the interval of an error-rate difference allows."""
    return {
        "same": "no difference that this suite can show",
        "worse": "a real loss: the whole interval is above zero",
        "better": "a real gain: the whole interval is below zero",
        "unknown": "not measured",
    }[rate_trend(rate)]


def _rows(label: str, rate: ErrorRate, _: object) -> list[Row]:
    change, detail = (
        formatting.points(rate.delta),
        f"95 % interval {formatting.interval(rate.interval)}",
    )
    return [
        Row(
            label=label,
            reference=formatting.percent(rate.reference),
            candidate=formatting.percent(rate.candidate),
            change=change if change == formatting.MISSING else f"{change} ({detail})",
            trend=rate_trend(rate),
            headline=Headline(change, detail, rate_judgement(rate)),
        )
    ]


def _rows_without_headline(label: str, rate: ErrorRate, _: object) -> list[Row]:
    return [replace(row, headline=None) for row in _rows(label, rate, _)]


def _doubt(document: Mapping[str, Any]) -> str | None:
    """Return why a report has no evidence about words; None where the reference is understood."""
    rate = document.get("wer")
    share = rate.get("reference") if isinstance(rate, Mapping) else None
    if not isinstance(share, int | float) or not formatting.is_finite(share):
        return "nothing was judged: the report lacks the word error rate of the reference"
    if share <= MISHEARD_AT_MOST:
        return None
    return (
        f"nothing was judged: the recognizer mishears {formatting.percent(share)} of the "
        f"reference's own words, more than {formatting.percent(MISHEARD_AT_MOST)}"
    )


METRICS = (
    Metric(
        name="wer",
        group="words",
        result=ErrorRate,
        compute=partial(_compare, "word", "candidate"),
        rows=partial(_rows, "Word error rate"),
        doubt=_doubt,
        terms=(
            Term(
                name="Word error rate",
                meaning="share of the words that the recognizer got wrong; lower is better. The "
                "change is compressed minus reference over the same texts and seeds, and the "
                "interval holds 95 % of what resampling the texts gives. With zero inside it, the "
                "suite shows no difference; more texts narrow it.",
            ),
        ),
    ),
    Metric(
        name="cer",
        group="words",
        result=ErrorRate,
        compute=partial(_compare, "character", "candidate"),
        rows=partial(_rows_without_headline, "Character error rate"),
        doubt=_doubt,
    ),
    Metric(
        name="floors",
        group="words",
        result=Baselines,
        observe=_observe_baseline,
        compute=_baselines,
        rows=lambda *_: (),  # a table of its own
        terms=(
            Term(
                name="Floors",
                meaning="results of the same comparison where nothing was compressed: the "
                "reference against itself with other seeds, and the recognizer on inaudibly "
                "changed audio. A change below them is noise.",
            ),
        ),
    ),
)
