"""Word and character error rates, their difference, and their baselines where nothing changed.

Rates are corpus-level: sum errors, sum tokens, divide once. The interval of a difference is by
paired bootstrap over texts (Bisani and Ney 2004).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.errors import EvaluationError, needing
from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import FEWEST_TEXTS, text_bound, text_interval
from tts_compress.evaluation.metric import (
    Figure,
    Headline,
    Metric,
    Pair,
    Paired,
    Record,
    Row,
    Trend,
    trend,
)
from tts_compress.evaluation.normalizers import counts_characters
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.spectra import compare_spectra

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


class ErrorRate(Paired):
    """Word or character error rate of both models, and their difference: positive is worse."""

    counts: Pair[RateCounts]

    bound: float | None = None
    """Upper bound of `delta`, at 97.5 %, losses included that are too rare to be in the interval;
    None of too few texts, and in older reports."""

    @property
    def trend(self) -> Trend:
        """Direction of the change: one only where its interval excludes zero."""
        if self.interval is None or not self.reference <= MISHEARD_AT_MOST:
            return "unknown"
        low, high = self.interval
        return trend(-high, -low, 0) if formatting.is_finite(self.delta) else "unknown"

    @property
    def judgement(self) -> str:
        """Conclusion that the interval allows."""
        if self.reference > MISHEARD_AT_MOST:
            return misheard(self.reference)
        if self.interval is None:
            return "too few texts to say if that is chance"
        return {
            "same": f"no difference that this suite can show{self._excluded}",
            "worse": "a real loss: the whole interval is above zero",
            "better": "a real gain: the whole interval is below zero",
            "unknown": "not measured",
        }[self.trend]

    @property
    def _excluded(self) -> str:
        """The loss that is not there, rare ones included."""
        return "" if self.bound is None else f", and no loss above {100 * self.bound:.1f} points"


class Baselines(Record):
    """Results of the same comparison where nothing was compressed; `floors` in the document.

    Words are those of each text's first seed.
    """

    other_seeds: ErrorRate
    """Reference against reference with other noise."""

    other_seeds_log_mel_distance_db: float
    recognizer: ErrorRate
    """Reference against an inaudibly changed copy of its own audio."""


class Edits(NamedTuple):
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


def count_edits(transcript: str, hypothesis: str, unit: Unit, *, spaced: bool = True) -> Edits:
    """Return the edits of one utterance; both sides are normalised already.

    Args:
        transcript: The words to be understood.
        hypothesis: The words that were.
        unit: Words or characters.
        spaced: Spaces are characters; not where each character was made a word of its own.

    Raises:
        EvaluationError: The transcript has no words; its rate would be a division by zero.
        MissingExtraError: jiwer is not installed.
    """
    with needing("evaluate"):
        import jiwer
    if not transcript.strip():
        raise EvaluationError(f"the transcript {transcript!r} has no words to compare with")
    if unit == "character" and not spaced:
        transcript, hypothesis = transcript.replace(" ", ""), hypothesis.replace(" ", "")
    process = jiwer.process_words if unit == "word" else jiwer.process_characters
    alignment = process(transcript, hypothesis)
    return Edits(
        substitutions=alignment.substitutions,
        insertions=alignment.insertions,
        deletions=alignment.deletions,
        tokens=alignment.hits + alignment.substitutions + alignment.deletions,
    )


def summarize_edits(edits: Sequence[Edits]) -> RateCounts:
    """Return the corpus-level rate.

    Raises:
        EvaluationError: There are no utterances.
    """
    if not edits:
        raise EvaluationError("no utterances to compute an error rate from")
    total = Edits(*(sum(counts) for counts in zip(*edits, strict=True)))
    return RateCounts(
        rate=total.errors / total.tokens,
        substitutions=total.substitutions,
        insertions=total.insertions,
        deletions=total.deletions,
        reference_tokens=total.tokens,
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
    if [row.tokens for row in reference] != [row.tokens for row in candidate]:
        raise ValueError("not a pair: the transcripts differ in number or length")
    counts = Pair(reference=summarize_edits(reference), candidate=summarize_edits(candidate))
    sums: dict[Hashable, npt.NDArray[np.int64]] = {}  # added errors and tokens of each text
    for before, after, block in zip(reference, candidate, blocks, strict=True):
        added = np.array((after.errors - before.errors, before.tokens))
        sums[block] = sums.get(block, 0) + added
    differences, tokens = np.array(list(sums.values())).T
    return ErrorRate(
        reference=counts.reference.rate,
        candidate=counts.candidate.rate,
        # The same arithmetic as for the resamples: no last digit puts it outside its interval.
        delta=float(differences.sum() / tokens.sum()),
        interval=text_interval(differences, tokens),
        counts=counts,
        bound=text_bound(differences, tokens, len(reference)),
    )


def _compare(unit: Unit, role: str, run: Run) -> ErrorRate:
    """Compare the reference with other audio of the pairs."""
    spaced = not counts_characters(run.suite.normalizer)
    pairs = [pair for pair in run.pairs if pair.audio.get(role) in run.hypotheses]
    reference, candidate = (
        [
            count_edits(pair.transcript, run.hypotheses[pair.audio[name]], unit, spaced=spaced)
            for pair in pairs
        ]
        for name in ("reference", role)
    )
    # Texts of the same words count as one.
    return compare_rates(reference, candidate, [pair.transcript for pair in pairs])


def _baselines(run: Run) -> Baselines:
    return Baselines(
        other_seeds=_compare("word", "other_seed", run),
        other_seeds_log_mel_distance_db=float(
            np.mean([spectra.distance_db for spectra in run.observations("floors")])
        ),
        recognizer=_compare("word", "disturbed", run),
    )


def _rows(unit: Unit, rate: ErrorRate, evaluation: Any) -> list[Row]:
    """Return the row of a rate; it is the headline where the suite counts in its unit.

    Without a recognizer, which hears no word of either model, the row has no figures.
    """
    in_characters = counts_characters(evaluation.suite.normalizer)
    is_counted = in_characters == (unit == "character")
    apart = ", each character a word" if in_characters and unit == "word" else ""
    label = f"{unit.capitalize()} error rate{apart}"
    if evaluation.suite.recognizer_name == "none":
        missing = formatting.MISSING
        return [Row(label=label, reference=missing, candidate=missing, change="not judged")]
    row = _row(label, rate)
    return [row if is_counted else replace(row, headline=None)]


def _row(label: str, rate: ErrorRate) -> Row:
    change = formatting.points(rate.delta)
    interval = f"95 % interval {formatting.interval(rate.interval)}"
    return Row(
        label=label,
        reference=formatting.percent(rate.reference),
        candidate=formatting.percent(rate.candidate),
        change=change if change == formatting.MISSING else f"{change} ({interval})",
        trend=rate.trend,
        headline=Headline(
            change,
            f"{formatting.percent(rate.reference)} to {formatting.percent(rate.candidate)}, the "
            f"recognizer's own errors included; {interval}",
            rate.judgement,
        ),
    )


def _doubt(document: Mapping[str, Any]) -> str | None:
    """Return why a report has no evidence about words; None where the reference is understood."""
    rate = document.get("wer")
    share = rate.get("reference") if isinstance(rate, Mapping) else None
    if not isinstance(share, int | float) or not formatting.is_finite(share):
        return "nothing was judged: the report lacks the word error rate of the reference"
    if share <= MISHEARD_AT_MOST:
        return None
    return f"{misheard(share)}; `--gates sound` judges without words"


def misheard(share: float) -> str:
    """Return why words show nothing where so many of the reference's are misheard."""
    if share == 1.0:  # nobody listened: the recognizer is 'none'
        return "nothing was judged: no word of the reference was recognized"
    return (
        f"nothing was judged: the recognizer mishears {formatting.percent(share)} of the "
        f"reference's own words, more than {formatting.percent(MISHEARD_AT_MOST)}"
    )


def find_doubts(evaluation: Any) -> list[str]:
    """Return why words and intervals of an `Evaluation` show less than they seem to."""
    texts, share = (
        len({utterance.transcript for utterance in evaluation.utterances}),
        evaluation.wer.reference,
    )
    doubts = []
    if texts < FEWEST_TEXTS:
        doubts.append(
            f"{texts} different {'text is' if texts == 1 else 'texts are'} too few for a 95 % "
            f"interval, which takes {FEWEST_TEXTS}: nothing shows if a change of words or sound is "
            "chance; evaluate with a larger suite"
        )
    if share > MISHEARD_AT_MOST:
        doubts.append(f"words: {misheard(share)}; choose another recognizer with --recognizer")
    return doubts


def _figures(unit: Unit) -> dict[str, Figure]:
    change = Figure(f"change of the {unit} error rate", formatting.points)
    most = Figure(f"upper bound of the rise of the {unit} error rate", formatting.points)
    return {"delta": change, "interval": change, "bound": most}


def _metric(name: str, unit: Unit, **more: Any) -> Metric:
    return Metric(
        name=name,
        group="words",
        result=ErrorRate,
        compute=partial(_compare, unit, "candidate"),
        rows=partial(_rows, unit),
        doubt=_doubt,
        figures=_figures(unit),
        **more,
    )


METRICS = (
    _metric(
        "wer",
        "word",
        terms={
            "Word error rate": "share of the words that the recognizer got wrong; lower is better. "
            "The change is compressed minus reference over the same texts and seeds, and the "
            "interval holds 95 % of what resampling the texts gives. With zero inside it, the "
            "suite shows no difference; more texts narrow it.",
        },
    ),
    _metric("cer", "character"),
    Metric(
        name="floors",
        group="words",
        result=Baselines,
        observe=lambda audios: compare_spectra(audios.reference, audios.other_seed),
        compute=_baselines,
        rows=lambda *_: (),  # a table of its own
        terms={
            "Floors": "results of the same comparison where nothing was compressed: the reference "
            "against itself with other seeds, and the recognizer on inaudibly changed audio. A "
            "change below them is noise.",
        },
    ),
)
