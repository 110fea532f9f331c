"""Rows that only some systems have: other runtimes of torch models, scores of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.report import judgement, wording
from tts_compress.report.row import Row
from tts_compress.report.speed import speed_of

if TYPE_CHECKING:
    from tts_compress.report.evaluation import Evaluation, RuntimeVariant

__all__ = ["runtime_rows", "teacher_forced_rows"]

_NAMES = {"plain-attention": "plain attention", "compile": "compiled"}


def runtime_rows(evaluation: Evaluation) -> list[Row]:
    """Return two rows for each other runtime: model against model, and each against its default."""
    return [row for variant in evaluation.runtimes for row in _runtime(variant)]


def teacher_forced_rows(evaluation: Evaluation) -> list[Row]:
    """Return how far the scores of a language model moved; nothing for other systems."""
    scores = evaluation.teacher_forced
    if scores is None:
        return []
    counted = f"{_count(scores.positions, 'token')}, {_count(scores.texts, 'text')}"
    rows = (
        (
            "Token agreement",
            wording.percent(scores.agreement),
            counted,
        ),
        ("KL divergence", wording.nats(scores.kl_nats), "per token, reading the same tokens"),
        (
            "Logit distance",
            wording.percent(scores.logit_distance),
            "of the reference's scores, RMS",
        ),
    )
    return [
        Row(label=label, reference="", candidate=value, change=about, trend="unknown")
        for label, value, about in rows
    ]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _runtime(variant: RuntimeVariant) -> list[Row]:
    name = _NAMES.get(variant.name, variant.name)
    latency, own = variant.latency, variant.speed
    if latency is None or own is None:
        reason = wording.one_line(variant.failure or "not measured", 160)
        return [
            Row(
                label=f"Latency, {name}",
                reference=wording.MISSING,
                candidate=wording.MISSING,
                change=f"failed: {reason}",
                trend="unknown",
            )
        ]
    speed = speed_of(latency)
    return [
        Row(
            label=f"Latency, {name}",
            reference=wording.milliseconds(speed.reference_ms),
            candidate=wording.milliseconds(speed.candidate_ms),
            change=speed.change,
            trend=judgement.speed_trend(speed),
        ),
        Row(
            label=f"Speed, {name}",
            reference=wording.times(own.reference, "faster", "slower"),
            candidate=wording.times(own.candidate, "faster", "slower"),
            change="each against its own default runtime",
            trend="unknown",
        ),
    ]
