"""Gates know direction and kind, never round, and fail on what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from tts_compress.errors import RecipeError
from tts_compress.evaluate import Gate, Gates, check, read_gates
from tts_compress.paths import data_names
from tts_compress.report.evaluation import Evaluation, Health

if TYPE_CHECKING:
    from pathlib import Path

_DOCUMENT: dict[str, Any] = {
    "wer": {"interval": [-0.01, 0.05]},
    "size": {"reference_bytes": 100, "candidate_bytes": 25, "ratio": 4.0},
    "snr": None,
    "bad": float("nan"),
    "endless": float("inf"),
    "text": "5",
    "flag": True,
    "zero": 0,
    "recovery": 0.9462,
    "rise": 0.0504,
}


_GOOD: dict[str, Any] = {
    "metric": "size.ratio",
    "limit": 1.0,
    "direction": "at-most",
    "kind": "absolute",
}


def _gate(metric: str, limit: float, direction: str = "at-most", **more: Any) -> Gate:
    table = {"metric": metric, "limit": limit, "direction": direction, "kind": "absolute"} | more
    return Gate.model_validate(table)


def _passes(gate: Gate) -> bool:
    return check(_DOCUMENT, Gates(version=1, name="g", summary="s", gate=(gate,))).passed


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        (_gate("wer.interval.1", 0.05), True),
        (_gate("wer.interval.1", 0.0499999999), False),
        (_gate("wer.interval.1", 0.05, "at-least"), True),
        (_gate("wer.interval.1", 0.0500000001, "at-least"), False),
        (_gate("wer.interval.0", 0.0), True),
        (_gate("zero", 0), True),
        # Rounded to two digits, both would pass.
        (_gate("recovery", 0.95, "at-least"), False),
        (_gate("rise", 0.05), False),
        (
            _gate("size.candidate_bytes", 0.25, kind="relative", baseline="size.reference_bytes"),
            True,
        ),
        (
            _gate("size.candidate_bytes", 0.2, kind="relative", baseline="size.reference_bytes"),
            False,
        ),
    ],
)
def test_a_value_is_compared_with_its_limit(gate: Gate, passed: bool) -> None:
    """The limit itself passes; the next number does not."""
    assert passed is _passes(gate)


@pytest.mark.parametrize(
    "metric",
    [
        "nothing",
        "wer.nothing",
        "wer",
        "wer.interval",
        "wer.interval.2",
        "wer.interval.x",
        "snr",
        "bad",
        "endless",
        "text",
        "flag",
        "text.0",
    ],
)
@pytest.mark.parametrize("direction", ["at-most", "at-least"])
def test_what_is_not_a_finite_number_fails(metric: str, direction: str) -> None:
    """Missing, null, NaN, infinite, or no number at all: whatever the direction."""
    limit = 1e300 if direction == "at-most" else -1e300
    assert not _passes(_gate(metric, limit, direction))


@pytest.mark.parametrize("baseline", ["nothing", "snr", "zero", "bad"])
def test_a_relative_gate_without_a_usable_baseline_fails(baseline: str) -> None:
    """Nothing is divided by zero or by what is missing."""
    assert not _passes(_gate("size.ratio", 1e300, kind="relative", baseline=baseline))


def test_one_failing_gate_fails_the_verdict_and_the_others_are_still_shown() -> None:
    """The verdict lists every gate in order."""
    gates = (_gate("size.ratio", 3.0, "at-least"), _gate("snr", 0.0), _gate("zero", 0.0))
    verdict = check(_DOCUMENT, Gates(version=1, name="g", summary="s", gate=gates))
    assert [(r.passed, r.value) for r in verdict.rows] == [(True, 4.0), (False, None), (True, 0.0)]
    assert not verdict.passed


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "relative"},
        {"baseline": "size.ratio"},
        {"limit": float("nan")},
        {"limit": "5"},
        {"direction": "below"},
        {"metric": "wer..interval"},
        {"metric": ""},
        {"unknown": 1},
    ],
)
def test_a_malformed_gate_is_refused(more: dict[str, Any]) -> None:
    """A gate that cannot fail is worse than none."""
    with pytest.raises(ValidationError):
        Gate.model_validate(_GOOD | more)


def test_a_file_without_gates_is_refused(tmp_path: Path) -> None:
    """It would pass everything."""
    path = tmp_path / "none.toml"
    path.write_text('version = 1\nname = "none"\nsummary = "s"\ngate = []\n', encoding="utf-8")
    with pytest.raises(RecipeError, match="gate"):
        read_gates(path)


@pytest.mark.parametrize("name", data_names("eval/gates"))
def test_shipped_gates_read(name: str) -> None:
    """The shipped files keep to the schema and to their names."""
    assert name == read_gates(name).name


def test_the_default_gates_ask_for_smaller_faster_and_as_good() -> None:
    """What every gate file for shipping has to look at."""
    for name in data_names("eval/gates"):
        asked = {(gate.metric, gate.direction) for gate in read_gates(name).gate}
        assert {
            ("wer.interval.1", "at-most"),
            ("size.candidate_bytes", "at-most"),
            ("latency.p50_ratio", "at-least"),
            ("duration.ratio", "at-least"),
            ("duration.ratio", "at-most"),
            *((f"health.candidate.{field}", "at-most") for field in Health.model_fields),
        } <= asked


@pytest.mark.parametrize("name", data_names("eval/gates"))
def test_every_shipped_metric_is_in_the_document(name: str) -> None:
    """A mistyped path would fail every candidate."""
    for gate in read_gates(name).gate:
        for path in filter(None, (gate.metric, gate.baseline)):
            kind: Any = Evaluation
            for part in path.split("."):
                if not part.isdecimal():
                    kind = kind.model_fields[part].annotation
