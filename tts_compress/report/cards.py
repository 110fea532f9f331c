"""The headline numbers of the page, each with what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.report import judgement, wording
from tts_compress.report.speed import speed_of

if TYPE_CHECKING:
    from tts_compress.report.evaluation import Evaluation
    from tts_compress.report.judgement import Trend

__all__ = ["Card", "cards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One number, large."""

    title: str
    value: str
    detail: str
    judgement: str
    trend: Trend


def cards(evaluation: Evaluation) -> tuple[Card, ...]:
    """Return the headline numbers: what was won first, then what it cost."""
    return (
        _size(evaluation),
        _speed(evaluation),
        _words(evaluation),
        _sound(evaluation),
        _timing(evaluation),
        _health(evaluation),
    )


def _size(evaluation: Evaluation) -> Card:
    size = evaluation.size
    before, after = wording.bytes_of(size.reference_bytes), wording.bytes_of(size.candidate_bytes)
    trend = judgement.ratio_trend(size.ratio)
    return Card(
        title="Size on disk",
        value=wording.times(size.ratio, "smaller", "larger"),
        detail=f"{before} to {after}",
        judgement={"better": "saves space", "worse": "takes more space"}.get(trend, "no change"),
        trend=trend,
    )


def _speed(evaluation: Evaluation) -> Card:
    speed, factor = speed_of(evaluation.latency), evaluation.rtf.candidate.p50
    before = wording.milliseconds(speed.reference_ms)
    after = wording.milliseconds(speed.candidate_ms)
    times = f"{before} to {after}, {speed.average}"
    pace = "faster" if factor < 1 else "not faster"
    said = f"real-time factor {wording.real_time_factor(factor)}, {pace} than speech"
    return Card(
        title="Speed",
        value=speed.words,
        detail=f"{times}; {speed.interval_words}" if speed.interval_words else times,
        judgement=said if wording.is_finite(factor) else "real-time factor not measured",
        trend=judgement.speed_trend(speed),
    )


def _words(evaluation: Evaluation) -> Card:
    wer = evaluation.wer
    return Card(
        title="Word error rate",
        value=wording.points(wer.delta),
        detail=f"95 % interval {wording.interval(wer.interval)}",
        judgement=judgement.rate_judgement(wer),
        trend=judgement.rate_trend(wer),
    )


def _sound(evaluation: Evaluation) -> Card:
    distance = evaluation.signal.log_mel_distance_db
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    known = wording.is_finite(distance) and wording.is_finite(floor)
    return Card(
        title="Log-mel distance",
        value=wording.decibels(distance),
        detail=f"other seeds: {wording.decibels(floor)}",
        judgement=judgement.distance_judgement(evaluation),
        trend="unknown" if not known else "same" if distance < floor else "worse",
    )


def _timing(evaluation: Evaluation) -> Card:
    ratio, kept = evaluation.duration.ratio, evaluation.duration.kept
    known = wording.is_finite(ratio)
    return Card(
        title="Length of the speech",
        value=f"{wording.signed(100 * (ratio - 1), 2)} %" if known else wording.MISSING,
        detail="total, compressed against reference",
        judgement=(
            f"{wording.percent(kept)} of the symbols keep their duration"
            if wording.is_finite(kept)
            else "durations of single symbols are not known"
        ),
        trend="unknown",
    )


def _health(evaluation: Evaluation) -> Card:
    health, count = evaluation.health, len(evaluation.utterances)
    defects = judgement.broken(health.candidate)
    return Card(
        title="Broken utterances",
        value=str(defects),
        detail=f"of {count} spoken; reference: {judgement.broken(health.reference)}",
        judgement=(
            judgement.broken_in_words(health.candidate)
            if defects
            else "none silent, clipped, empty or not finite"
        ),
        trend="worse" if defects else "same",
    )
