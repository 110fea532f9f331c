"""False alarms and power of every measure, as tables.

Where nothing changed, a comparison is drawn by dealing the reference's renderings of each text to
both sides, or by giving the candidate's difference of each text a random sign. Comparisons of more
texts than were measured draw texts with replacement, as all with damage do; fewer draw without.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.sound.values import DISTORTION, Values
from tts_compress.artifact import write_text_atomically
from tts_compress.evaluation.bootstrap import paired_interval, paired_intervals

_Floats = npt.NDArray[np.float64]

ALARMS = (0.025, 0.075)
"""Accepted shares of false alarms of a 95 % interval."""

_CERTAIN = 7.0
"""Standard errors from which on every comparison finds a candidate, and none is drawn."""

_BATCH = 250

_NONE = "\N{EN DASH}"


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
        name: found for name in values.candidates if (found := values.of(name, measure)) is not None
    }
    nothing: dict[str, dict[int, float]] = {"other seeds": {}, "sign flips": {}}
    for texts in plan.texts:
        chosen = _choose(len(units), (plan.alarms, texts), random)
        pooled = np.stack([found.mean(1) for found in differences.values()])
        kind = random.integers(len(pooled), size=(plan.alarms, 1))
        signs = random.choice((-1.0, 1.0), chosen.shape)
        drawn = {
            "other seeds": _dealt(values, measure, chosen, random),
            "sign flips": signs * pooled[kind, chosen],
        }
        for name, sums in drawn.items():
            if sums is not None:
                nothing[name][texts] = sum(_outside(sums, units[chosen]))
    return Measured(
        findings={name: _find(found, units, plan, random) for name, found in differences.items()},
        alarms=nothing,
    )


def _units(values: Values, measure: str) -> _Floats:
    """Return what a text's difference is divided by, shape `[texts]`."""
    return np.array(values.units.get(measure, np.ones(len(values.takes))))


def _choose(
    count: int, shape: tuple[int, int], random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return places of texts, without replacement where there are enough."""
    if shape[1] <= count:
        return random.random((shape[0], count)).argsort(axis=1)[:, : shape[1]]
    return random.integers(count, size=shape)


def _find(found: _Floats, units: _Floats, plan: Plan, random: np.random.Generator) -> Finding:
    means = found.mean(axis=1)
    delta = float(means.sum() / units.sum())
    spread = float((means - delta * units).std(ddof=1) / units.mean())
    t = delta / spread * float(np.sqrt(len(means))) if spread else 0.0
    power = {}
    for texts in plan.texts:
        chosen = random.integers(len(units), size=(plan.found, texts))
        certain = abs(t) * np.sqrt(texts / len(units)) > _CERTAIN
        shares = None if certain else _outside(means[chosen], units[chosen])
        power[texts] = shares[0 if delta > 0 else 1] if shares else 1.0
    return Finding(delta=delta, interval=paired_interval(means, units), t=t, power=power)


def _dealt(
    values: Values, measure: str, chosen: npt.NDArray[np.int64], random: np.random.Generator
) -> _Floats | None:
    """Return differences of texts where both sides are the reference, shape as `chosen`.

    None where other seeds were not measured.
    """
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


def _outside(sums: _Floats, units: _Floats) -> tuple[float, float]:
    """Return the shares of intervals above zero, and below it."""
    found = [
        paired_intervals(sums[start : start + _BATCH], units[start : start + _BATCH])
        for start in range(0, len(sums), _BATCH)
    ]
    low, high = np.concatenate(found).T
    return float((low > 0).mean()), float((high < 0).mean())


def write_report(found: Mapping[str, Measured], values: Values, command: str, path: Path) -> None:
    """Write the tables as Markdown."""
    order = found[DISTORTION].findings
    names = sorted(order, key=lambda name: abs(order[name].delta))
    texts = list(found[DISTORTION].alarms["sign flips"])
    seeds = ", ".join(map(str, values.seeds))
    cells = {
        (name, measure): finding
        for measure, one in found.items()
        for name, finding in one.findings.items()
    }

    def table(show: Callable[[Finding], str]) -> list[str]:
        rows = [
            [show(cells[name, measure]) if (name, measure) in cells else _NONE for measure in found]
            for name in names
        ]
        return [
            "",
            f"| candidate | {' | '.join(found)} |",
            f"| :-- |{' --: |' * len(found)}",
            *(f"| {name} | {' | '.join(row)} |" for name, row in zip(names, rows, strict=True)),
            "",
        ]

    limits = " to ".join(f"{100 * limit:g}" for limit in ALARMS)
    alarms = found[DISTORTION].alarms
    kinds = [f"{kind}, {size} texts" for kind in alarms for size in texts]
    lines = [
        "# Damage that words do not show",
        "",
        f"Candidates made from the demo voice speak `{values.suite}` ({len(values.takes)} texts, "
        f"seeds {seeds}). Rows are ordered by `distortion`, which is in shares of what mu-law "
        "adds; word errors are shares of words, opinion scores points, all else decibels.",
        "",
        "## Candidate minus reference",
        *table(lambda one: f"{one.delta:+.3f}"),
        "## The same in standard errors",
        *table(lambda one: f"{one.t:+.1f}"),
        f"## Share of comparisons that find it, with {', '.join(map(str, texts))} texts",
        *table(lambda one: " / ".join(f"{100 * share:.0f}" for share in one.power.values())),
        f"In %; texts are drawn with replacement. {_NONE}: not measured.",
        "",
        "## False alarms",
        "",
        "Share of 95 % intervals without zero where nothing changed: renderings of the reference "
        f"dealt to both sides, and random signs. Accepted: {limits} %.",
        "",
        f"| measure | {' | '.join(kinds)} |",
        f"| :-- |{' --: |' * len(kinds)}",
    ]
    for measure, one in found.items():
        shares = [
            f"{100 * kind[size]:.1f} %" if size in kind else _NONE
            for kind in one.alarms.values()
            for size in texts
        ]
        lines.append(f"| {measure} | {' | '.join(shares)} |")
    lines += ["", f"Measured on {values.machine}; `sound-values.json`.", ""]
    lines += [f"Made by `{command}` (`make prove`).", ""]
    write_text_atomically(path, "\n".join(lines))
