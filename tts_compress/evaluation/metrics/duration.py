"""Timing of the candidate's speech against the reference's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Headline, Metric, Record, Row

if TYPE_CHECKING:
    from tts_compress.evaluation.metric import Audios
    from tts_compress.evaluation.pairs import Run

__all__ = ["METRICS", "Duration"]


class Duration(Record):
    """Change of the timing over all utterances."""

    ratio: float
    """Total candidate seconds over total reference seconds."""

    kept: float | None
    """Share of input symbols with the same number of frames; None where unknown."""


def _observe(audios: Audios) -> tuple[int, int]:
    """Return the symbols with equal frames and all symbols; none where they are not known."""
    before, after = audios.reference.durations, audios.candidate.durations
    if before is None or after is None or not len(before) or not len(after):
        return 0, 0
    return int((before == after).sum()) if len(before) == len(after) else 0, len(before)


def _compute(run: Run) -> Duration:
    kept, symbols = (sum(counts) for counts in zip(*run.observations("duration"), strict=True))
    seconds = sum(pair.reference.seconds for pair in run.pairs)
    return Duration(
        ratio=sum(pair.candidate.seconds for pair in run.pairs) / seconds,
        kept=kept / symbols if symbols else None,
    )


def _change(duration: Duration) -> str:
    if not formatting.is_finite(duration.ratio):
        return formatting.MISSING
    return f"{formatting.signed(100 * (duration.ratio - 1), 2)} %"


def _rows(duration: Duration, _: object) -> list[Row]:
    ratio, kept = duration.ratio, duration.kept
    known = formatting.is_finite(ratio)
    moved = formatting.percent(1 - kept) if formatting.is_finite(kept) else None
    return [
        Row(
            label="Length of the speech",
            candidate=f"{ratio:.4f}\N{MULTIPLICATION SIGN}" if known else formatting.MISSING,
            change=_change(duration),
        ),
        Row(
            label="Durations kept",
            candidate=formatting.percent(kept),
            change=formatting.MISSING if moved is None else f"{moved} of symbols moved",
        ),
    ]


def _headline(duration: Duration, _: object) -> Headline:
    return Headline(
        title="Length of the speech",
        value=_change(duration),
        detail="total, compressed against reference",
        judgement=(
            f"{formatting.percent(duration.kept)} of the symbols keep their duration"
            if formatting.is_finite(duration.kept)
            else "durations of single symbols are not known"
        ),
        trend="unknown",
    )


METRICS = (
    Metric(
        name="duration",
        group="timing",
        result=Duration,
        observe=_observe,
        compute=_compute,
        rows=_rows,
        headline=_headline,
    ),
)
