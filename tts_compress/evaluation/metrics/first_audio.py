"""How soon the first sound is there: the first chunk of what streams, the whole of the rest."""

from dataclasses import replace

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Figure, Metric, Row, ratio_row
from tts_compress.evaluation.metrics.cost import LatencyComparison, compare_timings
from tts_compress.evaluation.pairs import Run

_SOONER = ("sooner", "later")


def _compute(run: Run) -> LatencyComparison:
    """Return the times until the first sound of interleaved runs."""
    timings = [t.model_copy(update={"spent": t.first or t.spent}) for t in run.timings]
    return compare_timings(timings[0], timings[1], run.options)


def _rows(first: LatencyComparison, _: object) -> list[Row]:
    show, before, after = formatting.milliseconds, first.reference, first.candidate
    middle = ratio_row("First sound, p50", (before.p50_ms, after.p50_ms), show, _SOONER)
    interval = f" ({first.interval_in_words})" if first.interval_in_words else ""
    tail = ratio_row("First sound, p95", (before.p95_ms, after.p95_ms), show, _SOONER)
    return [replace(middle, change=f"{middle.change}{interval}"), tail]


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
