"""False alarms and power of a measure.

Where nothing changed, a comparison is drawn by dealing the reference's renderings of each text to
both sides, or by giving the candidate's difference of each text a random sign. Comparisons of more
texts than were measured draw texts with replacement, as all with damage do; fewer draw without.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from benchmarks.power.simulate import choose, share_outside
from tts_compress.config import Config, describe_problems
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.intervals import paired_interval

Rows: TypeAlias = tuple[tuple[float, ...], ...]
"""Shape `[texts, seeds]`."""

DISTORTION = "distortion"

SHIPPED = Path("eval/reports/sound-values.json")
"""Measured by `python -m benchmarks.sound.measure`."""


class Values(Config):
    """Values of every measure, and distances between renderings."""

    suite: str
    seeds: tuple[int, ...] = Field(min_length=1)
    machine: str
    units: dict[str, tuple[float, ...]]
    """Per text, what differences are divided by, for `distortion` (decibels that mu-law adds to
    the reference's distance from another rendering) and for `word errors` (words)."""

    takes: tuple[Rows, ...]
    """Distances between the reference's renderings of each text, seeds by seeds."""

    reference: dict[str, Rows]
    """By measure; of `distortion` there is none."""

    other_seeds: dict[str, Rows]
    """The reference with other seeds, likewise."""

    candidates: dict[str, dict[str, Rows]] = Field(default_factory=dict)
    """By name and measure; `distortion` in decibels added."""

    def of(self, candidate: str, measure: str) -> npt.NDArray[np.float64] | None:
        """Return candidate minus reference `[texts, seeds]`; None where it was not measured."""
        rows = self.candidates[candidate].get(measure)
        if rows is None:
            return None
        array: npt.NDArray[np.float64] = np.array(rows, np.float64)
        return array if measure == DISTORTION else array - np.array(self.reference[measure])


def read_values(path: Path = SHIPPED) -> Values:
    """Return measured values."""
    try:
        return Values.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EvaluationError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValidationError as error:
        raise EvaluationError(f"'{path}' holds no values: {describe_problems(error)}") from error


_Floats = npt.NDArray[np.float64]

_CERTAIN = 7.0
"""Standard errors from which on every comparison shows a candidate, and none is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of a suite, and the comparisons drawn for each share."""

    texts: tuple[int, ...] = (24, 100, 200)
    alarms: int = 1000
    found: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One candidate by one measure."""

    delta: float
    interval: tuple[float, float]
    t: float
    """Mean over texts by its standard error."""

    power: Mapping[int, float]
    """Share of comparisons whose interval excludes zero on the side of `delta`, by texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything about one measure; alarms by kind and texts."""

    findings: Mapping[str, Finding]
    alarms: Mapping[str, Mapping[int, float]]


def analyse(values: Values, measure: str, plan: Plan) -> Measured:
    """Return what a measure finds, and how often it finds what is not there."""
    random = np.random.default_rng(0)
    units = _units(values, measure)
    differences = {
        name: rows for name in values.candidates if (rows := values.of(name, measure)) is not None
    }
    nothing: dict[str, dict[int, float]] = {"other seeds": {}, "sign flips": {}}
    for texts in plan.texts:
        chosen = choose(len(units), (plan.alarms, texts), random)
        pooled = np.stack([rows.mean(1) for rows in differences.values()])
        kind = random.integers(len(pooled), size=(plan.alarms, 1))
        signs = random.choice((-1.0, 1.0), chosen.shape)
        drawn = {
            "other seeds": deal(values, measure, chosen, random),
            "sign flips": signs * pooled[kind, chosen],
        }
        for name, sums in drawn.items():
            if sums is not None:
                nothing[name][texts] = sum(share_outside(sums, units[chosen]))
    return Measured(
        findings={name: _find(rows, units, plan, random) for name, rows in differences.items()},
        alarms=nothing,
    )


def _units(values: Values, measure: str) -> _Floats:
    return np.array(values.units.get(measure, np.ones(len(values.takes))))


def _find(differences: _Floats, units: _Floats, plan: Plan, random: np.random.Generator) -> Finding:
    means = differences.mean(axis=1)
    delta = float(means.sum() / units.sum())
    spread = float((means - delta * units).std(ddof=1) / units.mean())
    t = delta / spread * float(np.sqrt(len(means))) if spread else 0.0
    power = {}
    for texts in plan.texts:
        chosen = random.integers(len(units), size=(plan.found, texts))
        certain = abs(t) * np.sqrt(texts / len(units)) > _CERTAIN
        shares = None if certain else share_outside(means[chosen], units[chosen])
        power[texts] = shares[0 if delta > 0 else 1] if shares else 1.0
    return Finding(delta=delta, interval=paired_interval(means, units), t=t, power=power)


def deal(
    values: Values, measure: str, chosen: npt.NDArray[np.int64], random: np.random.Generator
) -> _Floats | None:
    """Return differences of the reference from itself, if measured."""
    seeds = len(values.seeds)
    if measure == DISTORTION:
        distances = np.array(values.takes)[chosen]  # [comparisons, texts, renderings, renderings]
        order = random.random(distances.shape[:3]).argsort(axis=2)
        one, two, other = (order[..., n * seeds : (n + 1) * seeds] for n in range(3))
        rows = np.arange(chosen.shape[0])[:, None, None]
        columns = np.arange(chosen.shape[1])[:, None]
        added = distances[rows, columns, one, other] - distances[rows, columns, two, other]
        return np.asarray(added.mean(axis=2))
    if measure not in values.other_seeds:
        return None
    both = np.concatenate((values.reference[measure], values.other_seeds[measure]), axis=1)
    dealt = random.permuted(both[chosen], axis=2)
    return np.asarray(dealt[..., :seeds].mean(axis=2) - dealt[..., seeds:].mean(axis=2))
