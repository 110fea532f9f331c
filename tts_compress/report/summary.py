"""The few numbers everybody wants, as rows for the terminal, Markdown and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.report import judgement, wording
from tts_compress.report.row import Row
from tts_compress.report.speed import speed_of
from tts_compress.report.torch_rows import runtime_rows, teacher_forced_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tts_compress.report.evaluation import ErrorRate, Evaluation

__all__ = ["Row", "summary_rows"]


def summary_rows(evaluation: Evaluation) -> list[Row]:
    """Return the headline measurements: cost first, then intelligibility, then the signal."""
    return [
        *_cost_rows(evaluation),
        *runtime_rows(evaluation),
        _rate_row("Word error rate", evaluation.wer),
        _rate_row("Character error rate", evaluation.cer),
        _distance_row(evaluation),
        _sharpest_row(evaluation),
        _noise_row(evaluation),
        _duration_row(evaluation),
        _kept_row(evaluation),
        *teacher_forced_rows(evaluation),
        _health_row(evaluation),
    ]


def _cost_rows(evaluation: Evaluation) -> list[Row]:
    size, latency = evaluation.size, evaluation.latency
    rtf, memory, load = evaluation.rtf, evaluation.memory, evaluation.load
    sizes = (size.reference_bytes, size.candidate_bytes)
    tails = (latency.reference.p95_ms, latency.candidate.p95_ms)
    factors = (rtf.reference.p50, rtf.candidate.p50)
    peaks = (memory.reference.peak_bytes, memory.candidate.peak_bytes)
    opening = (load.reference.open_ms, load.candidate.open_ms)
    return [
        _ratio_row("Size on disk", sizes, wording.bytes_of, ("smaller", "larger"), size.ratio),
        _speed_row(evaluation),
        _ratio_row("Latency, p95", tails, wording.milliseconds, ("faster", "slower")),
        _ratio_row("Real-time factor", factors, wording.real_time_factor, ("faster", "slower")),
        _ratio_row("Peak memory", peaks, wording.bytes_of, ("less", "more")),
        _ratio_row("Load time", opening, wording.milliseconds, ("faster", "slower")),
    ]


def _speed_row(evaluation: Evaluation) -> Row:
    speed = speed_of(evaluation.latency)
    return Row(
        label=f"Latency, {speed.average}",
        reference=wording.milliseconds(speed.reference_ms),
        candidate=wording.milliseconds(speed.candidate_ms),
        change=speed.change,
        trend=judgement.speed_trend(speed),
    )


def _ratio_row(
    label: str,
    values: tuple[float, float],
    written: Callable[[float | None], str],
    words: tuple[str, str],
    ratio: float | None = None,
) -> Row:
    """Return a row of a cost, where less is better; the ratio is of the values unless given."""
    reference, candidate = values
    if ratio is None:
        ratio = _ratio(reference, candidate)
    return Row(
        label=label,
        reference=written(reference),
        candidate=written(candidate),
        change=wording.times(ratio, *words),
        trend=judgement.ratio_trend(ratio),
    )


def _rate_row(label: str, rate: ErrorRate) -> Row:
    change = wording.points(rate.delta)
    if change != wording.MISSING:
        change += f" (95 % interval {wording.interval(rate.interval)})"
    return Row(
        label=label,
        reference=wording.percent(rate.reference),
        candidate=wording.percent(rate.candidate),
        change=change,
        trend=judgement.rate_trend(rate),
    )


def _distance_row(evaluation: Evaluation) -> Row:
    distance = evaluation.signal.log_mel_distance_db
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    known = wording.is_finite(distance) and wording.is_finite(floor)
    return Row(
        label="Log-mel distance",
        reference="",
        candidate=wording.decibels(distance),
        change=f"floor, other seeds: {wording.decibels(floor)}",
        trend="unknown" if not known else "same" if distance < floor else "worse",
    )


def _sharpest_row(evaluation: Evaluation) -> Row:
    signal = evaluation.signal
    share = wording.percent(signal.same_timing)
    known = wording.is_finite(signal.same_timing_log_mel_distance_db)
    return Row(
        label="Log-mel, same timing",
        reference="",
        candidate=wording.decibels(signal.same_timing_log_mel_distance_db),
        change=f"over the {share} of same timing" if known else "no utterances of same timing",
        trend="unknown",
    )


def _noise_row(evaluation: Evaluation) -> Row:
    signal = evaluation.signal
    if not wording.is_finite(signal.snr_db):
        change = "no same timing, or no difference"
    else:
        # Reports of before `same_timing` was measured have the share of equal lengths only.
        share = signal.equal_length if signal.same_timing is None else signal.same_timing
        change = f"over the {wording.percent(share)} of same timing"
    return Row(
        label="Signal-to-noise ratio",
        reference="",
        candidate=wording.decibels(signal.snr_db),
        change=change,
        trend="unknown",
    )


def _duration_row(evaluation: Evaluation) -> Row:
    ratio = evaluation.duration.ratio
    known = wording.is_finite(ratio)
    return Row(
        label="Length of the speech",
        reference="",
        candidate=f"{ratio:.4f}\N{MULTIPLICATION SIGN}" if known else wording.MISSING,
        change=f"{wording.signed(100 * (ratio - 1), 2)} %" if known else wording.MISSING,
        trend="unknown",
    )


def _kept_row(evaluation: Evaluation) -> Row:
    kept = evaluation.duration.kept
    moved = 1 - kept if wording.is_finite(kept) else None
    return Row(
        label="Durations kept",
        reference="",
        candidate=wording.percent(kept),
        change=wording.MISSING if moved is None else f"{wording.percent(moved)} of symbols moved",
        trend="unknown",
    )


def _health_row(evaluation: Evaluation) -> Row:
    reference, candidate = evaluation.health.reference, evaluation.health.candidate
    before, after = judgement.broken(reference), judgement.broken(candidate)
    return Row(
        label="Broken utterances",
        reference=judgement.broken_in_words(reference),
        candidate=judgement.broken_in_words(candidate),
        change="fails, whatever its word error rate" if after else "all are sound",
        trend="worse" if after else "better" if before else "same",
    )


def _ratio(reference: float, candidate: float) -> float | None:
    if not (wording.is_finite(reference) and wording.is_finite(candidate)) or candidate == 0:
        return None
    return reference / candidate
