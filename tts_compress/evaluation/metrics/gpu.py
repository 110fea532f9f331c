"""Cost on a GPU: what it holds of a model and does for it while that speaks."""

from collections.abc import Callable
from statistics import median

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Figure, Metric, Pair, Record, Row, ratio_row
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.stages import Timings


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


def _compute(run: Run) -> Pair[GpuUse] | None:
    before, after = map(_use, run.timings)
    return None if before is None or after is None else Pair(reference=before, candidate=after)


def _rows(pair: Pair[GpuUse], _: object) -> list[Row]:
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


METRICS = (
    Metric(
        name="gpu",
        group="cost",
        result=Pair[GpuUse],
        optional=True,
        compute=_compute,
        rows=_rows,
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
)
