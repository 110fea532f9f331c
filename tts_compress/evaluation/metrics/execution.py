"""Where a model was computed: what it holds of a GPU and does for it, and a graph's providers."""

from collections import Counter
from collections.abc import Callable
from statistics import median

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Figure, Metric, Pair, Record, Row, ratio_row
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.stages import Timings
from tts_compress.evaluation.subject import Subject
from tts_compress.models.execution import execution_of
from tts_compress.onnx.session import fallback


class GpuUse(Record):
    """Medians over the fresh processes, in which a warm model spoke the longest text."""

    peak_bytes: float
    """The most that tensors had at a time."""

    allocated_bytes: float
    """Bytes of tensors when it has spoken: the weights."""

    reserved_bytes: float
    """Bytes that torch took from the driver for them."""

    fragmentation: float
    """Share of that which is too split to be used."""

    utilisation_percent: float | None = None
    """Share of the time in which the GPU computed; None without NVML."""

    power_w: float | None = None
    """Mean power of the whole GPU, watts; None without NVML."""


def _use(timings: Timings) -> GpuUse | None:
    readings = [process.gpu for process in timings.fresh]
    if not all(readings):
        return None
    return GpuUse(**{name: median(each[name] for each in readings) for name in readings[0]})


def _compute_use(run: Run) -> Pair[GpuUse] | None:
    before, after = map(_use, run.timings)
    return None if before is None or after is None else Pair(reference=before, candidate=after)


def _use_rows(pair: Pair[GpuUse], _: object) -> list[Row]:
    shown: dict[str, tuple[str, Callable[[float | None], str]]] = {
        "peak_bytes": ("GPU memory, peak", formatting.bytes_of),
        "reserved_bytes": ("GPU memory, reserved", formatting.bytes_of),
        "fragmentation": ("GPU memory, fragmented", _percent),
        "utilisation_percent": ("GPU utilisation", lambda x: _percent(x and x / 100)),
        "power_w": ("GPU power", lambda x: formatting.MISSING if x is None else f"{x:.0f} W"),
    }
    rows = []
    for field, (label, show) in shown.items():
        values = getattr(pair.reference, field), getattr(pair.candidate, field)
        if field == "peak_bytes":
            rows.append(ratio_row(label, values, show, ("less", "more")))
        elif None not in values:
            rows.append(Row(label=label, reference=show(values[0]), candidate=show(values[1])))
    return rows


def _percent(share: float | None) -> str:
    return formatting.MISSING if share is None else f"{share:.0%}"


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


def _compute_placement(run: Run) -> Pair[Placement] | None:
    before, after = (_place(*side) for side in zip(run.subjects, run.timings, strict=True))
    is_told = before.operators or after.operators
    return Pair(reference=before, candidate=after) if is_told else None


def _placement_rows(pair: Pair[Placement], _: object) -> list[Row]:
    before, after = (
        ", ".join(f"{count:,} {name}" for name, count in side.operators.items())
        for side in (pair.reference, pair.candidate)
    )
    missing = formatting.MISSING
    return [
        Row(label="Operators by provider", reference=before or missing, candidate=after or missing)
    ]


METRICS = (
    Metric(
        name="gpu",
        group="cost",
        result=Pair[GpuUse],
        optional=True,
        compute=_compute_use,
        rows=_use_rows,
        figures={"candidate.peak_bytes": Figure("memory of the GPU", formatting.bytes_of)},
        terms={
            "GPU memory, peak": "the most bytes that tensors had on the GPU at a time, by torch's "
            "account, until the longest timed text was spoken twice.",
            "GPU memory, reserved": "what torch had taken from the driver by then; of that the "
            "fragmented share lies in pieces too small to be used.",
            "GPU utilisation": "share of the time in which the GPU computed at all, and GPU power "
            "its mean power, by NVML, while the warm model spoke that text.",
        },
    ),
    Metric(
        name="provider",
        group="cost",
        result=Pair[Placement],
        optional=True,
        compute=_compute_placement,
        rows=_placement_rows,
        terms={
            "Operators by provider": "operators of the graph as onnxruntime divided it when it was "
            "timed. What the provider asked for does not know falls back to the CPU, and data "
            "travels between the two.",
        },
    ),
)
