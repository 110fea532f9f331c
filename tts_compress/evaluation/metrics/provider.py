"""The providers that computed a voice of graphs, where it was not the CPU's alone."""

from collections import Counter

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Metric, Pair, Record, Row
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.stages import Timings
from tts_compress.evaluation.subject import Subject
from tts_compress.models.execution import execution_of
from tts_compress.onnx.providers import fallback


class Placement(Record):
    """The providers of a voice's operators."""

    provider: str
    """The one that was asked for."""

    operators: dict[str, int]
    """Numbers of operators by provider; empty where onnxruntime does not tell."""

    fallback: str
    """A sentence on those that another one computes; empty where there are none."""


def _place(model: Subject, timings: Timings) -> Placement:
    told = timings.fresh[0].operators.items()
    operators = Counter({(name.split()[0], name.split()[1]): count for name, count in told})
    asked = execution_of(model.model).provider.partition("?")[0]
    by_provider = Counter[str]()
    for (provider, _), count in operators.items():
        by_provider[provider] += count
    return Placement(
        provider=asked, operators=dict(by_provider), fallback=fallback(operators, asked)
    )


def _compute(run: Run) -> Pair[Placement] | None:
    before, after = (_place(*side) for side in zip(run.subjects, run.timings, strict=True))
    is_told = before.operators or after.operators
    return Pair(reference=before, candidate=after) if is_told else None


def _rows(pair: Pair[Placement], _: object) -> list[Row]:
    before, after = (_shown(side) for side in (pair.reference, pair.candidate))
    return [Row(label="Operators by provider", reference=before, candidate=after)]


def _shown(side: Placement) -> str:
    counts = (f"{count:,} {name}" for name, count in side.operators.items())
    return ", ".join(counts) or formatting.MISSING


METRICS = (
    Metric(
        name="provider",
        group="cost",
        result=Pair[Placement],
        optional=True,
        compute=_compute,
        rows=_rows,
        terms={
            "Operators by provider": "operators of the graph as onnxruntime divided it when it was "
            "timed. What the provider asked for does not know falls back to the CPU, and data "
            "travels between the two.",
        },
    ),
)
