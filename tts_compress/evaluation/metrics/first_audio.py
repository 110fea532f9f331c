"""How soon the first sound is there: the first chunk of what streams, the whole of the rest."""

from dataclasses import replace

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Figure, Headline, Metric, Row, ratio_row
from tts_compress.evaluation.metrics.cost import LatencyComparison, compare_timings
from tts_compress.evaluation.pairs import Run

_SOONER = ("sooner", "later")


def _compute(run: Run) -> LatencyComparison:
    """Return the times until the first sound of interleaved runs."""
    timings = [one.model_copy(update={"spent": one.first or one.spent}) for one in run.timings]
    return compare_timings(timings[0], timings[1], run.options)


def _rows(first: LatencyComparison, _: object) -> list[Row]:
    change = formatting.times(first.ratio, *_SOONER)
    rows = []
    for label, field in (("First sound, p50", "p50_ms"), ("First sound, p95", "p95_ms")):
        values = (getattr(first.reference, field), getattr(first.candidate, field))
        rows.append(ratio_row(label, values, formatting.milliseconds, _SOONER))
    detail = f"{rows[0].reference} to {rows[0].candidate}, median"
    headline = Headline(change, detail, first.interval_in_words or "interval not measured")
    return [replace(rows[0], headline=headline), rows[1]]


METRICS = (
    Metric(
        name="first_audio",
        group="cost",
        result=LatencyComparison,
        optional=True,
        compute=_compute,
        rows=_rows,
        figures={
            "candidate.p95_ms": Figure("time until the first sound, p95", formatting.milliseconds),
            **dict.fromkeys(("ratio", "interval"), Figure("first sound, times as soon")),
        },
        terms={
            "First sound": "time until the first chunk of a voice in stages (`export --stream`), "
            "the first sentence of piper, or the whole text of other players.",
        },
    ),
)
