"""A candidate against an earlier report: worse only where the intervals say so."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tts_compress.errors import EvaluationError
from tts_compress.evaluation import Gate, read_gates
from tts_compress.evaluation import gate as judge
from tts_compress.evaluation.gates import Estimate, certain_change
from tts_compress.evaluation.intervals import paired_interval

_SHIPPED = Path(__file__).parents[2] / "eval" / "reports" / "demo-int8.json"


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    """Return the shipped report of the demo voice, without the utterances, which no gate reads."""
    document: dict[str, Any] = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    return document | {"utterances": []}


@pytest.fixture
def before(shipped: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(shipped)


def _failed(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    rows = judge(now, read_gates("regression"), before).rows
    return [row.gate.metric for row in rows if not row.passed]


def test_the_same_report_is_no_regression(before: dict[str, Any]) -> None:
    """Nor is one that is better in everything."""
    assert not _failed(before, before)
    better = copy.deepcopy(before)
    better["wer"] |= {"delta": -0.05, "interval": [-0.06, -0.04]}
    better["distortion"] |= {"value": 0.01, "interval": [0.0, 0.02]}
    better["size"]["ratio"] += 1
    assert not _failed(better, before)
    assert _failed(before, better) == ["wer.delta", "distortion.value", "size.ratio"]


@pytest.mark.parametrize(
    ("delta", "interval", "failed"),
    [
        (0.012, (0.003, 0.021), False),  # ten words of a thousand, and within the noise of both
        (0.020, (0.011, 0.029), True),  # the intervals overlap nowhere
        # They overlap, and yet the interval of the difference is above zero: 0.0149 − 0.0126.
        (0.017, (0.008, 0.026), True),
        (0.020, (-0.09, 0.13), False),  # a short suite shows nothing
    ],
)
def test_words_are_lost_where_the_interval_of_the_change_says_so(
    before: dict[str, Any], delta: float, interval: tuple[float, float], failed: bool
) -> None:
    """The earlier report has +0.2 points, from −0.7 to +1.1."""
    before["wer"] |= {"delta": 0.002, "interval": [-0.007, 0.011]}
    now = copy.deepcopy(before)
    now["wer"] |= {"delta": delta, "interval": [*interval]}
    assert _failed(now, before) == (["wer.delta"] if failed else [])


@pytest.mark.parametrize(("ratio", "failed"), [(-0.03, False), (-0.05, True)])
def test_an_exact_figure_has_a_tolerance(
    before: dict[str, Any], ratio: float, failed: bool
) -> None:
    """A file that grows by less than a hundredth is the same."""
    now = copy.deepcopy(before)
    now["size"]["ratio"] += ratio
    assert _failed(now, before) == (["size.ratio"] if failed else [])


def test_a_fall_is_bounded_from_above() -> None:
    """For figures of which more is better, such as an opinion score."""
    score = Estimate(3.0, 2.8, 3.2), Estimate(2.6, 2.4, 2.8)
    assert certain_change(*score, upwards=False) == pytest.approx(-0.4 + 0.2 * np.sqrt(2))
    assert certain_change(*score, upwards=True) == pytest.approx(-0.4 - 0.2 * np.sqrt(2))


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_the_interval_promises() -> None:
    """Two candidates with the same loss over the same texts: at most 2.5 %, and noise."""
    random = np.random.default_rng(0)
    words = np.full(60, 10)

    def evaluate() -> Estimate:
        lost = random.poisson(0.3, 60) - random.poisson(0.3, 60)
        return Estimate(float(lost.sum() / words.sum()), *paired_interval(lost, words))

    alarms = [certain_change(evaluate(), evaluate(), upwards=True) > 0 for _ in range(150)]
    assert sum(alarms) <= 9  # 3.75 are expected; more than 9 in 1 % of seeds


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"recognizer": "another"}, "recognizer"),
        ({"seeds": [0, 1]}, "seeds"),
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"name": "en-quick"}, "suite"),
        ({"normalizer": "en-v2"}, "normaliser"),
        ({"texts": 24}, "number of texts"),
    ],
)
def test_other_texts_seeds_or_ears_do_not_compare(
    before: dict[str, Any], changed: dict[str, Any], named: str
) -> None:
    """The difference would be theirs and not the candidate's."""
    now = copy.deepcopy(before)
    now["suite"] |= changed
    with pytest.raises(EvaluationError, match=f"not comparable: .*{named}"):
        judge(now, read_gates("regression"), before)


def test_there_must_be_an_earlier_report(before: dict[str, Any]) -> None:
    """A gate that compares with nothing passes nothing."""
    with pytest.raises(EvaluationError, match="--against"):
        judge(before, read_gates("regression"))
    for now, earlier in ((before, {}), ({}, before)):
        with pytest.raises(EvaluationError, match="does not state its suite"):
            judge(now, read_gates("regression"), earlier)
    assert judge(before, read_gates("default")).passed  # others need none


def test_what_is_missing_from_either_report_fails(before: dict[str, Any]) -> None:
    """As everywhere: a metric that was dropped must not pass for one that is as good."""
    without = copy.deepcopy(before)
    without["distortion"] = None
    assert _failed(without, before) == _failed(before, without) == ["distortion.value"]
    without["distortion"] = before["distortion"] | {"interval": None}
    (row,) = [row for row in judge(without, read_gates("regression"), before).rows if row.reason]
    assert row.reason is not None
    assert row.reason.endswith(
        "too little was measured for an interval; evaluate with 12 texts or more"
    )


def test_an_earlier_report_that_nobody_understood_is_no_evidence(before: dict[str, Any]) -> None:
    """Its word errors are guesses."""
    deaf = copy.deepcopy(before)
    deaf["wer"]["reference"] = 0.7
    (row,) = [row for row in judge(before, read_gates("regression"), deaf).rows if row.reason]
    assert row.gate.metric == "wer.delta"
    assert row.reason is not None
    assert row.reason.startswith("in the earlier report nothing was judged")


def test_an_interval_belongs_to_a_change() -> None:
    """Elsewhere it would be ignored."""
    table = {"metric": "wer.delta", "limit": 0.0, "direction": "at-most", "kind": "absolute"}
    with pytest.raises(ValidationError, match="only where `kind` is change"):
        Gate.model_validate(table | {"interval": "wer.interval"})
