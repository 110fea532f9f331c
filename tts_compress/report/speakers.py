"""Speakers of a voice that has several: the worst by words and by sound.

A suite has few texts for each, so that these are places to listen at rather than measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Row
from tts_compress.evaluation.result import Evaluation, Utterance

TERMS = {
    "Worst speaker": "of a voice with several, the one whose word error rate rose most, and the "
    "one whose audio is farthest from the reference's. Texts go round the speakers, so that each "
    "has few: listen to them before you judge.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerResult:
    """The utterances of one speaker together."""

    name: str
    texts: int
    reference: float
    """Word error rate, summed over utterances before the division; so `candidate`."""

    candidate: float
    log_mel_distance_db: float
    """Mean over its utterances."""

    @property
    def rise(self) -> float:
        """Word error rate, candidate minus reference."""
        return self.candidate - self.reference


def speaker_results(evaluation: Evaluation) -> list[SpeakerResult]:
    """Return the result of each speaker in the report, in the order of the suite."""
    grouped: dict[str, list[Utterance]] = {}
    for utterance in evaluation.utterances:
        if utterance.speaker is not None:
            grouped.setdefault(utterance.speaker, []).append(utterance)
    return [_summarize(name, spoken) for name, spoken in grouped.items()]


def speaker_rows(evaluation: Evaluation) -> list[Row]:
    """Return the lines of the worst speakers; none where fewer than two spoke."""
    results = speaker_results(evaluation)
    if len(results) < 2:
        return []
    heard = f"of {len(results)} heard"
    words = max(results, key=lambda result: result.rise)
    row = Row(
        label="Worst speaker, words",
        candidate="none",
        change=f"{heard}, none has more word errors",
        trend="same",
    )
    if words.rise > 0:
        row = Row(
            label=row.label,
            reference=formatting.percent(words.reference),
            candidate=formatting.percent(words.candidate),
            change=f"{_name(words)}: {formatting.points(words.rise)} over {_texts(words)}, {heard}",
        )
    sound, others = _farthest(results)
    return [
        row,
        Row(
            label="Worst speaker, log-mel",
            candidate=formatting.decibels(sound.log_mel_distance_db),
            change=f"{_name(sound)} over {_texts(sound)}; the others: "
            f"{formatting.decibels(others)}",
            trend="worse" if _is_far(sound.log_mel_distance_db, evaluation) else "same",
        ),
    ]


def speaker_cautions(evaluation: Evaluation) -> list[str]:
    """Return a warning of a speaker that is damaged where the others are not."""
    results = speaker_results(evaluation)
    if len(results) < 2:
        return []
    worst, others = _farthest(results)
    if not _is_far(worst.log_mel_distance_db, evaluation) or _is_far(others, evaluation):
        return []
    return [
        f"Speaker {_name(worst)} is as far from the reference as other noise is, or farther: "
        f"log-mel distance {formatting.decibels(worst.log_mel_distance_db)} over "
        f"{_texts(worst)}, {formatting.decibels(others)} of the others."
    ]


def _summarize(name: str, spoken: Sequence[Utterance]) -> SpeakerResult:
    words = sum(utterance.words for utterance in spoken)
    return SpeakerResult(
        name=name,
        texts=len({utterance.index for utterance in spoken}),
        reference=sum(utterance.reference.word_errors for utterance in spoken) / words,
        candidate=sum(utterance.candidate.word_errors for utterance in spoken) / words,
        log_mel_distance_db=float(np.mean([one.log_mel_distance_db for one in spoken])),
    )


def _farthest(results: Sequence[SpeakerResult]) -> tuple[SpeakerResult, float]:
    """Return the speaker of the largest log-mel distance, and the mean of the others."""
    distances = [result.log_mel_distance_db for result in results]
    place = int(np.argmax(np.nan_to_num(distances, nan=np.inf)))
    return results[place], float(np.mean(distances[:place] + distances[place + 1 :]))


def _is_far(distance: float, evaluation: Evaluation) -> bool:
    """Return True if audio is no closer to the reference than that is with other noise."""
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    return formatting.is_finite(floor) and not distance < floor


def _name(result: SpeakerResult) -> str:
    return formatting.one_line(result.name, 40)


def _texts(result: SpeakerResult) -> str:
    return "1 text" if result.texts == 1 else f"{result.texts} texts"
