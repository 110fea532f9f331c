"""The declaration of a metric: value, unit, direction, rows and help in one place.

Many metrics are a figure of both models with the interval of its change: `Paired`, `Show`.

A module of `tts_compress/evaluation/metrics` lists its metrics in `METRICS`; a module of another
package does the same and is named under the entry points `tts_compress.metrics`. Evaluations,
tables, reports and gates go through `find_metrics` and name no metric themselves.
"""

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from tts_compress.audio import Audio
from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import text_interval
from tts_compress.evaluation.options import EvaluationOptions

T = TypeVar("T")

Trend: TypeAlias = Literal["better", "worse", "same", "unknown"]

NO_FLOOR = "no floor: the reference has no other rendering"

_Group: TypeAlias = Literal["cost", "words", "sound", "timing", "tokens", "health"]


class Record(BaseModel):
    """A part of `report.json`: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Document(Record):
    """A whole file of that kind."""

    def to_json(self) -> str:
        """Return the document."""
        return self.model_dump_json(indent=2) + "\n"


class Pair(Record, Generic[T]):
    """One measurement of both models."""

    reference: T
    candidate: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Audios:
    """One text of the suite with one seed; `other_seed` is the reference with another one."""

    reference: Audio
    candidate: Audio
    other_seed: Audio
    before: "Audios | None" = None
    """The same text with the suite's seed before; None with the first seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A slow analysis of single audios, by a network for example.

    It is done in processes of its own, several at a time, and kept by the hash of the audio.
    """

    name: str

    settings: Callable[[EvaluationOptions], Mapping[str, str] | None]
    """Returns what decides its values, such as versions; None where it is not to be done."""

    open: Callable[[Mapping[str, str]], Callable[[Audio], Any]]
    """Returns the analysis, given the settings. Its values can be written as JSON, and no audio
    makes it fail: a broken candidate is a finding, not an error."""

    is_tried: bool = False
    """It is opened once before anything is spoken, as a user's file may be wrong or never end."""

    roles: tuple[str, ...] = ("reference", "candidate")
    """Audios of a pair that are analysed; `other_seed` may be one."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The large number that a row has at the top of the page."""

    value: str
    detail: str
    judgement: str


@dataclass(frozen=True, slots=True)
class Figure:
    """The words for a value that a gate limits."""

    name: str
    show: Callable[[float | None], str] = formatting.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the summary, ready to print."""

    label: str
    reference: str = ""
    """Empty where the measurement is a distance from the reference."""

    candidate: str
    change: str = ""
    """The difference, in words that show its direction."""

    trend: Trend = "unknown"
    """Direction of the change; `same` also for a change that may be chance."""

    headline: Headline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    The smallest has `name`, `group`, `label`, `unit`, `direction` and `compute`, whose value is a
    number or a `Pair` of numbers.
    """

    name: str
    """Its key in `report.json`, by which gates address it."""

    group: _Group
    """Its place in the tables."""

    compute: Callable[[Any], Any]
    """Returns the value, given the `Run`; None where these models do not have it."""

    result: Any = float
    """Type of the value: a number, a `Pair` of numbers, or a `Record`."""

    observe: Callable[[Audios], Any] | None = None
    """Measures one text with one seed; `compute` finds the results in `Run.observations`."""

    measure: Measure | None = None
    """Analyses single audios; `compute` finds the results in `Run.measurements`. Metrics that share
    one are given the same."""

    optional: bool = False
    """The value may be None or, in older reports, missing."""

    label: str = ""
    unit: str = ""
    direction: Literal["lower", "higher"] = "lower"
    """Direction of better values."""

    rows: Callable[[Any, Any], Sequence[Row]] | None = None
    """Returns its lines in the tables, given the value and the `Evaluation`; by default one line
    of label, numbers and unit."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    """Words for the values that gates limit, by their paths below the metric's name; those of
    `interval` are for both of its ends."""

    terms: Mapping[str, str] = field(default_factory=dict)
    """Help: the terms of its rows, and what they mean."""

    doubt: Callable[[Mapping[str, Any]], str | None] | None = None
    """Returns why no gate may judge by this metric, given `report.json`; None where one may."""

    @property
    def of_models(self) -> bool:
        """True if it measures models, and is None where recordings are judged."""
        return self.group in {"cost", "tokens"}

    def table_rows(self, value: Any, evaluation: Any) -> Sequence[Row]:
        """Return its lines in the tables."""
        if self.rows is not None:
            return self.rows(value, evaluation)
        if not isinstance(value, Pair):
            return [Row(label=self.label, candidate=self._show(value))]
        before, after = value.reference, value.candidate
        growth = _ratio(after, before)
        gain = growth if self.direction == "higher" else _ratio(before, after)
        return [
            Row(
                label=self.label,
                reference=self._show(before),
                candidate=self._show(after),
                change=formatting.times(growth, "higher", "lower"),
                trend=trend(gain, gain, 1),
            )
        ]

    def _show(self, value: float) -> str:
        return f"{value:.4g} {self.unit}".strip() if math.isfinite(value) else formatting.MISSING


@cache
def find_metrics() -> tuple[Metric, ...]:
    """Return every metric, in the order of the tables: this package's, then those of others."""
    package = import_module("tts_compress.evaluation.metrics")
    names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    modules = [import_module(name) for name in names]
    modules += [entry.load() for entry in entry_points(group="tts_compress.metrics")]
    metrics = [metric for module in modules for metric in module.METRICS]
    return tuple(sorted(metrics, key=lambda metric: get_args(_Group).index(metric.group)))


def find_figure(path: str) -> Figure:
    """Return the words for a value of `report.json`, given its dotted path."""
    name, _, rest = path.partition(".")
    figures = next((metric.figures for metric in find_metrics() if metric.name == name), {})
    head, _, tail = rest.rpartition(".")
    end = {"0": "lower", "1": "upper"}.get(tail)
    if end is None or head not in figures:
        return figures.get(rest, Figure(path))
    return Figure(f"{figures[head].name}, {end} end of its 95 % interval", figures[head].show)


@cache
def find_measures() -> Mapping[str, Measure]:
    """Return the analyses of all metrics by name."""
    return {metric.measure.name: metric.measure for metric in find_metrics() if metric.measure}


def trend(low: float | None, high: float | None, neutral: float) -> Trend:
    """Return the direction of a gain from its interval: `same` where that holds `neutral`."""
    if not (formatting.is_finite(low) and formatting.is_finite(high)):
        return "unknown"
    if low > neutral:
        return "better"
    return "worse" if high < neutral else "same"


def ratio_row(
    label: str,
    values: tuple[float, float],
    show: Callable[[float | None], str],
    words: tuple[str, str],
) -> Row:
    """Return the row of a cost, where less is better.

    Args:
        label: Its name.
        values: Reference and candidate.
        show: Formats a value.
        words: For less and for more, such as `smaller` and `larger`.
    """
    ratio = _ratio(*values)
    return Row(
        label=label,
        reference=show(values[0]),
        candidate=show(values[1]),
        change=formatting.times(ratio, *words),
        trend=trend(ratio, ratio, 1),
    )


def _ratio(reference: float, candidate: float) -> float | None:
    are_finite = formatting.is_finite(reference) and formatting.is_finite(candidate)
    # A ratio of levels in decibels, which may be negative, says nothing.
    return reference / candidate if are_finite and reference >= 0 and candidate > 0 else None


class Paired(Record):
    """A figure over all utterances."""

    reference: float
    candidate: float
    delta: float
    """Candidate minus reference, mean over utterances."""

    interval: tuple[float, float] | None
    """Its 95 % interval over resampled texts, each with all its seeds; None of too few texts."""


def compare_pairs(run: Any, before: npt.ArrayLike, after: npt.ArrayLike) -> Paired | None:
    """Return the comparison of a figure of each pair; of those where both are finite.

    Args:
        run: A `Run`, whose blocks say which texts belong together.
        before: The reference's figures, shape `[pairs]`.
        after: The candidate's, likewise.

    Returns:
        The comparison; None where nothing is finite.
    """
    left, right = np.asarray(before, np.float64), np.asarray(after, np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not finite.any():
        return None
    left, right = left[finite], right[finite]
    texts = np.array(run.blocks)[finite]
    _, places = np.unique(texts, return_inverse=True)
    return Paired(
        reference=float(left.mean()),
        candidate=float(right.mean()),
        delta=float((right - left).mean()),
        interval=text_interval(
            np.bincount(places, weights=right - left), np.bincount(places).astype(np.int64)
        ),
    )


@dataclass(frozen=True, slots=True)
class Show:
    """The form in which a figure is printed."""

    label: str
    unit: str = ""
    digits: int = 2
    scale: float = 1.0
    """Factor to the unit: 100 for a share in %."""

    better: Literal["higher", "lower"] | None = "higher"
    """None where a change is neither better nor worse."""

    def metric(
        self, name: str, compute: Callable[[Any], Any], *, floor: bool = False, **more: Any
    ) -> Metric:
        """Return the metric of such a figure.

        Args:
            name: Its key in reports.
            compute: Returns a `Paired` of a `Run`, or None.
            floor: True if the value's `reference` is a floor (`floor_rows`).
            more: Fields of `Metric` that differ from those of most figures.
        """
        usual: dict[str, Any] = {"group": "sound", "result": Paired, "optional": True}
        rows = self.floor_rows if floor else self.rows
        return Metric(name=name, compute=compute, rows=rows, **usual | more)

    def rows(self, value: Paired, _: object = None) -> list[Row]:
        """Return the line of a figure of both models."""
        change = formatting.signed(self.scale * value.delta, self.digits)
        interval = formatting.interval(value.interval, self.scale, self.digits)
        return [
            Row(
                label=self.label,
                reference=self._show(value.reference),
                candidate=self._show(value.candidate),
                change=f"{change} (95 % interval {interval})",
                trend=self._trend(value),
            )
        ]

    def floor_rows(self, value: Paired, _: object = None) -> list[Row]:
        """Return the line of a likeness or a distance of the candidate to the reference.

        The value's `reference` is that of the reference to itself with other seeds.
        """
        floor, direction = self._show(value.reference), self._trend(value)
        change = f"floor, other seeds: {floor}"
        if abs(value.reference - (self.better == "higher")) < 1e-6:
            change, direction = NO_FLOOR, "unknown"
        return [
            Row(
                label=self.label,
                candidate=self._show(value.candidate),
                change=change,
                # Closer than that is as close as anybody can ask for.
                trend="same" if direction == "better" else direction,
            )
        ]

    def _show(self, figure: float) -> str:
        return f"{self.scale * figure:.{self.digits}f} {self.unit}".strip()

    def _trend(self, value: Paired) -> Trend:
        low, high = value.interval or (math.nan, math.nan)
        direction = trend(-high, -low, 0.0) if self.better == "lower" else trend(low, high, 0.0)
        return direction if self.better is not None or direction == "same" else "unknown"
