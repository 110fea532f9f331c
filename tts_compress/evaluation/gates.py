"""Limits that an evaluation passes or fails: the TOML files in `eval/gates`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from tts_compress.config import Config, ConfigFile, data_file, read_config
from tts_compress.report import wording
from tts_compress.report.evaluation import Evaluation
from tts_compress.report.judgement import MISHEARD_AT_MOST

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

    @property
    def judges_words(self) -> bool:
        """Whether it looks at what the recognizer understood."""
        paths = (self.metric, self.baseline or "")
        return any(path.split(".")[0] in {"wer", "cer"} for path in paths)

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
    reason: str | None = None
    """Why it failed whatever the value is; None where the value decided."""


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

    The gates are gone through, not the document: what is missing from it fails. Gates on words fail
    where the reference itself is not understood, whatever the candidate's words are.
    """
    found = document.model_dump(mode="json") if isinstance(document, Evaluation) else document
    unheard = _not_understood(found)
    rows = (_judge(gate, found, unheard if gate.judges_words else None) for gate in gates.gate)
    return Verdict(name=gates.name, rows=tuple(rows))


def read_gates(name: str | Path) -> Gates:
    """Return shipped gates, or those in a user's TOML file.

    Raises:
        RecipeError: There are none of that name, or the file is malformed.
    """
    return read_config(data_file("eval/gates", str(name)), Gates)


def _judge(gate: Gate, document: Mapping[str, Any], reason: str | None) -> GateResult:
    """Return the result of one gate; with a reason it fails."""
    value = gate.value(document)
    passed = reason is None and gate.passes(value)
    return GateResult(gate=gate, value=value, passed=passed, reason=reason)


def _not_understood(document: Mapping[str, Any]) -> str | None:
    """Return why a report says nothing about words; None where the reference is understood."""
    share = _number(document, "wer.reference")
    if share is None:
        return "nothing was judged: the report lacks the word error rate of the reference"
    if share <= MISHEARD_AT_MOST:
        return None
    return (
        f"nothing was judged: the recognizer mishears {wording.percent(share)} of the reference's "
        f"own words, more than {wording.percent(MISHEARD_AT_MOST)}"
    )


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
