"""Timing of the candidate's speech against the reference's."""

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Audios, Figure, Headline, Metric, Record, Row
from tts_compress.evaluation.pairs import Run


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
    before, after = (
        sum(pair.seconds[role] for pair in run.pairs) for role in ("reference", "candidate")
    )
    return Duration(
        ratio=after / before,
        kept=kept / symbols if symbols else None,
    )


def _rows(duration: Duration, _: object) -> list[Row]:
    ratio, kept = duration.ratio, formatting.percent(duration.kept)
    total = change = formatting.MISSING
    if formatting.is_finite(ratio):
        total = f"{ratio:.4f}\N{MULTIPLICATION SIGN}"
        change = f"{formatting.signed(100 * (ratio - 1), 2)} %"
    moved, judgement = formatting.MISSING, "durations of single symbols are not known"
    if formatting.is_finite(duration.kept):
        moved = f"{formatting.percent(1 - duration.kept)} of symbols moved"
        judgement = f"{kept} of the symbols keep their duration"
    return [
        Row(
            label="Length of the speech",
            candidate=total,
            change=change,
            headline=Headline(change, "total, compressed against reference", judgement),
        ),
        Row(label="Durations kept", candidate=kept, change=moved),
    ]


METRICS = (
    Metric(
        name="duration",
        group="timing",
        result=Duration,
        observe=_observe,
        compute=_compute,
        rows=_rows,
        figures={"ratio": Figure("length of the speech, of the reference's", formatting.percent)},
    ),
)
