"""Limits that an evaluation passes or fails: the TOML files in `eval/gates`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from tts_compress.config import Config, ConfigFile, read_config
from tts_compress.paths import data_file
from tts_compress.report.evaluation import Evaluation

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Gate", "GateResult", "Gates", "Verdict", "check", "read_gates"]


class Gate(Config):
    """A limit on one metric."""

    metric: str = Field(pattern=r"^\w+(\.\w+)*$")
    """Dotted path in `report.json`, such as `wer.interval.1`."""

    limit: float = Field(allow_inf_nan=False)
    """The last value that passes."""

    direction: Literal["at-most", "at-least"]
    kind: Literal["absolute", "relative"]
    """What is compared with the limit: the metric, or the metric divided by the baseline."""

    baseline: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """Dotted path of what a relative gate divides by."""

    @model_validator(mode="after")
    def _baseline_iff_relative(self) -> Gate:
        if (self.kind == "relative") != (self.baseline is not None):
            raise ValueError("`baseline` is given exactly where `kind` is relative")
        return self

    def value(self, document: Mapping[str, Any]) -> float | None:
        """Return what is compared with the limit, or None where it is not a finite number."""
        found = _number(document, self.metric)
        if self.baseline is None or found is None:
            return found
        base = _number(document, self.baseline)
        return found / base if base else None

    def passes(self, value: float | None) -> bool:
        """Return whether a value is within the limit; None never is."""
        if value is None:
            return False
        return value <= self.limit if self.direction == "at-most" else value >= self.limit


class Gates(ConfigFile):
    """What a candidate has to fulfil to be shipped."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    summary: str
    """Which suite the limits are for, and why they are what they are."""

    gate: tuple[Gate, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One gate and what was found."""

    gate: Gate
    value: float | None
    """Not rounded; None where the metric is missing, null or not finite."""

    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Every gate's result."""

    name: str
    """Of the gates."""

    rows: tuple[GateResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate passed."""
        return all(row.passed for row in self.rows)


def check(document: Evaluation | Mapping[str, Any], gates: Gates) -> Verdict:
    """Judge an evaluation, or a `report.json` that was read.

    The gates are gone through, not the document: what is missing from it fails.
    """
    found = document.model_dump(mode="json") if isinstance(document, Evaluation) else document
    values = [(gate, gate.value(found)) for gate in gates.gate]
    rows = (GateResult(gate=g, value=value, passed=g.passes(value)) for g, value in values)
    return Verdict(name=gates.name, rows=tuple(rows))


def read_gates(name: str | Path) -> Gates:
    """Return shipped gates, or those in a user's TOML file.

    Raises:
        RecipeError: There are none of that name, or the file is malformed.
    """
    return read_config(data_file("eval/gates", str(name)), Gates)


def _number(document: Mapping[str, Any], path: str) -> float | None:
    found: Any = document
    for part in path.split("."):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif _is_list(found) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) else None


def _is_list(found: object) -> bool:
    return isinstance(found, Sequence) and not isinstance(found, str | bytes)
