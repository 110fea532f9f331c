"""Limits that an evaluation passes or fails: the TOML files in `eval/gates`."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from tts_compress.config import Config, ConfigFile, data_file, read_config
from tts_compress.errors import EvaluationError, RecipeError
from tts_compress.evaluation.intervals import FEWEST_TEXTS
from tts_compress.evaluation.metric import Metric, find_metrics
from tts_compress.evaluation.result import Evaluation, path_problem

_DECISIVE = {
    "name": "suite",
    "recognizer": "recognizer",
    "seeds": "seeds",
    "texts": "number of texts",
    "normalizer": "text normaliser",
    "sha256": "SHA-256 of the suite",
}
"""Fields of `suite` in a report that decide what its figures mean, with their names for people."""


class Estimate(NamedTuple):
    """A figure with the ends of its 95 % interval; all three are equal for an exact one."""

    value: float
    low: float
    high: float


def certain_change(before: Estimate, now: Estimate, *, upwards: bool) -> float:
    """Return the end nearest to no rise, or to no fall, of the interval of `now - before`.

    The interval of the difference is made from those of both figures (MOVER: Zou and Donner,
    "Construction of confidence intervals about effect measures: a general approach", Statistics in
    Medicine 27, 2008), as if they were independent. Two evaluations of the same texts resemble
    each other, so it is rather too wide: 95 % is the least.

    Args:
        before: The figure of the earlier report.
        now: That of the report which is judged.
        upwards: Bound a rise from below; else a fall from above.
    """
    difference = now.value - before.value
    if upwards:
        return difference - math.hypot(now.value - now.low, before.high - before.value)
    return difference + math.hypot(now.high - now.value, before.value - before.low)


def refuse_incomparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse reports whose figures do not compare.

    Raises:
        EvaluationError: Suite, seeds, recognizer or normaliser differ; the message has both.
    """
    earlier, present = before.get("suite"), now.get("suite")
    if not (isinstance(earlier, Mapping) and isinstance(present, Mapping)):
        raise EvaluationError("not comparable: one of the two reports does not state its suite")
    for key, name in _DECISIVE.items():
        if earlier.get(key) != present.get(key):
            raise EvaluationError(
                f"not comparable: {name} {earlier.get(key)!r} in the earlier report, "
                f"{present.get(key)!r} in this one; evaluate again as before, or commit this "
                "report as the one to compare with"
            )


_DIGITS = 10
_LARGEST = sys.float_info.max


class Gate(Config):
    """A limit on one metric."""

    metric: str = Field(pattern=r"^\w+(\.(\w+|\*))*$")
    """Dotted path in `report.json`, such as `wer.interval.1`; a `*` stands for each of the figures
    that the metric has, as in `damage.*.utterances`: all kinds, and those to come."""

    limit: float = Field(allow_inf_nan=False)
    """The last value that passes."""

    direction: Literal["at-most", "at-least"]
    kind: Literal["absolute", "relative", "change"]
    """The metric is compared with the limit as it is, divided by the baseline, or as its change
    since an earlier report: as much of it as is certain."""

    baseline: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """Dotted path of the value that a relative gate divides by."""

    interval: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """Dotted path of the metric's 95 % interval, for a change; None for a metric that is exact."""

    @model_validator(mode="after")
    def _baseline_iff_relative(self) -> "Gate":
        if (self.kind == "relative") != (self.baseline is not None):
            raise ValueError("`baseline` is given exactly where `kind` is relative")
        if self.interval is not None and self.kind != "change":
            raise ValueError("`interval` is given only where `kind` is change")
        return self

    def value(
        self, document: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> float | None:
        """Return the value to compare with the limit, or None where it is not a finite number.

        Args:
            document: The report.
            before: The earlier report that a change is measured from.
        """
        if self.kind == "change":
            now, then = self._estimate(document), self._estimate(before or {})
            if now is None or then is None:
                return None
            return certain_change(then, now, upwards=self.direction == "at-most")
        number = _number(document, self.metric)
        if self.baseline is None or number is None:
            return number
        base = _number(document, self.baseline)
        return number / base if base else None

    def doubt(self, document: Mapping[str, Any]) -> str | None:
        """Return why its metrics judge nothing in a report; None where they do."""
        doubts = [metric.doubt for metric in self._metrics()]
        return next((why for doubt in doubts if doubt and (why := doubt(document))), None)

    def _estimate(self, document: Mapping[str, Any]) -> Estimate | None:
        ends = [f"{self.interval}.{end}" for end in (0, 1)] if self.interval else [self.metric] * 2
        numbers = [_number(document, path) for path in (self.metric, *ends)]
        stated = [number for number in numbers if number is not None]
        return Estimate(*stated) if len(stated) == len(numbers) else None

    def expanded(self) -> list["Gate"]:
        """Return a gate for each figure that a `*` stands for; itself without one."""
        name, _, rest = self.metric.partition(".")
        figures = [
            path for metric in find_metrics() if metric.name == name for path in metric.figures
        ]
        return [
            self.model_copy(update={"metric": f"{name}.{path}"})
            for path in figures
            if fnmatchcase(path, rest)
        ] or [self]

    @property
    def groups(self) -> set[str]:
        """Groups of its metrics: `words` where the value depends on the recognizer."""
        return {metric.group for metric in self._metrics()}

    def lacks_interval(self, document: Mapping[str, Any]) -> bool:
        """Return True if the report states that its metric has no interval."""
        figure = (self.interval or self.metric).partition(".interval")[0]
        part = _find(document, figure.removesuffix(".bound"))
        return isinstance(part, Mapping) and part.get("interval", ()) is None

    def no_number(self, document: Mapping[str, Any]) -> str | None:
        """Return what a report has in the place of a number; None where it has one, or nothing."""
        for path in filter(None, (self.metric, self.baseline)):
            content = _find(document, path)
            if isinstance(content, Mapping | list | tuple):
                parts = content if isinstance(content, Mapping) else range(len(content))
                example = next((f", such as '{path}.{part}'" for part in parts), "")
                return f"'{path}' is not a number; name one of its parts{example}"
            if isinstance(content, str | bool):
                return f"'{path}' is {content!r:.40}, not a number; name another metric"
        return None

    def _metrics(self) -> list[Metric]:
        names = {path.split(".")[0] for path in (self.metric, self.baseline or "")}
        return [metric for metric in find_metrics() if metric.name in names]

    def passes(self, value: float | None) -> bool:
        """Return True if a value is within the limit; None never is."""
        if value is None:
            return False
        return value <= self.limit if self.direction == "at-most" else value >= self.limit


class Gates(ConfigFile):
    """The limits that a candidate has to keep to be shipped."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    summary: str
    """The suite the limits are for, and the reasons for their values."""

    recognizer: str | None = None
    """The recognizer that limits on words are for, `NAME` or `NAME:MODEL`; reports with another
    fail them. None judges reports with any."""

    gate: tuple[Gate, ...] = Field(min_length=1)

    @property
    def needs_earlier(self) -> bool:
        """True if one of the gates judges the change since an earlier report."""
        return any(gate.kind == "change" for gate in self.gate)

    def doubt(self, gate: Gate, document: Mapping[str, Any]) -> str | None:
        """Return why one of the gates judges nothing in a report; None where it does."""
        if self.recognizer is None or "words" not in gate.groups:
            return gate.doubt(document)
        suite = document.get("suite")
        used = str(suite.get("recognizer_name")) if isinstance(suite, Mapping) else "None"
        if self.recognizer in (used, used.partition(":")[0]):
            return gate.doubt(document)
        judge = "an unnamed recognizer" if used == "None" else f"recognizer {used!r}"
        return f"nothing was judged: the report is of {judge}, the limit for {self.recognizer!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One gate and its value."""

    gate: Gate
    value: float | None
    """Not rounded; None where the metric is missing, null or not finite."""

    now: float | None = None
    before: float | None = None
    """The metric in both reports, where its change is judged."""

    passed: bool
    reason: str | None = None
    """Why it failed whatever the value is; None where the value decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Every gate's result."""

    name: str
    """Name of the gates."""

    rows: tuple[GateResult, ...]

    @property
    def passed(self) -> bool:
        """True if every gate passed."""
        return all(row.passed for row in self.rows)


def gate(
    document: Evaluation | Mapping[str, Any],
    gates: Gates,
    before: Evaluation | Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge an evaluation, or a `report.json` that was read.

    The gates are gone through, not the document: what is missing from it fails. So do gates whose
    metric is in doubt, such as those on words where the reference itself is not understood.

    Args:
        document: The evaluation.
        gates: The limits.
        before: The earlier evaluation that gates of kind `change` compare with.

    Raises:
        EvaluationError: A gate needs the earlier evaluation and there is none, or the two do not
            compare: another suite, other seeds, another recognizer.
    """
    now, earlier = _document(document), _document(before or {})
    if gates.needs_earlier:
        if before is None:
            raise EvaluationError(
                f"the gates {gates.name!r} judge the change since an earlier report; name it with "
                "--against report.json"
            )
        refuse_incomparable(earlier, now)
    limits = [limit for gate in gates.gate for limit in gate.expanded()]
    rows = tuple(_judge(limit, gates, now, earlier) for limit in limits)
    return Verdict(name=gates.name, rows=rows)


def _judge(
    gate: Gate, gates: Gates, document: Mapping[str, Any], earlier: Mapping[str, Any]
) -> GateResult:
    value, doubt = gate.value(document, earlier), gates.doubt(gate, document)
    if value is None and doubt is None and gate.lacks_interval(document):
        doubt = "nothing was judged: too little was measured for an interval; evaluate with "
        doubt += "more timed runs" if "cost" in gate.groups else f"{FEWEST_TEXTS} texts or more"
    doubt = doubt or gate.no_number(document)
    passed = doubt is None and gate.passes(value)
    if gate.kind != "change":
        return GateResult(gate=gate, value=value, passed=passed, reason=doubt)
    if doubt is None and (past := gates.doubt(gate, earlier)) is not None:
        doubt, passed = f"in the earlier report {past}", False
    now, before = _number(document, gate.metric), _number(earlier, gate.metric)
    return GateResult(gate=gate, value=value, now=now, before=before, passed=passed, reason=doubt)


def _document(report: Evaluation | Mapping[str, Any]) -> Mapping[str, Any]:
    return report.model_dump(mode="json") if isinstance(report, Evaluation) else report


def read_gates(name: str | Path) -> Gates:
    """Return shipped gates, or those in a user's TOML file.

    Raises:
        RecipeError: There are none of that name, the file is malformed, or it limits what no
            report has.
    """
    path = data_file("eval/gates", str(name))
    gates = read_config(path, Gates)
    for limit in (limit for gate in gates.gate for limit in gate.expanded()):
        for figure in filter(None, (limit.metric, limit.baseline, limit.interval)):
            if problem := path_problem(figure):
                raise RecipeError(f"'{path}' has a gate on {figure!r}, but {problem}")
    return gates


def _place(part: str) -> int:
    """Return the place in a list that a part of a path names; one of more digits names none."""
    return int(part) if part.isdecimal() and len(part) < _DIGITS else sys.maxsize


def _find(document: Mapping[str, Any], path: str) -> Any:
    """Return what lies at a dotted path; None where nothing does."""
    value: Any = document
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and (index := _place(part)) < len(value):
            value = value[index]
        else:
            return None
    return value


def _number(document: Mapping[str, Any], path: str) -> float | None:
    value = _find(document, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Whole numbers of a document may be larger than any float.
    return float(value) if -_LARGEST <= value <= _LARGEST else None
