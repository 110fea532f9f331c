"""Whole sweeps of made-up models: interrupted, in shares, with a broken voice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.sweep.conftest import InProcessPool, InProcessSeat
from tts_compress.evaluation import read_report
from tts_compress.progress import Silent
from tts_compress.sweep.run import Planned, merge_shares, plan_sweep, run_share, run_sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.sweep.plan import OpenPlan

_TIMINGS = {"latency", "rtf", "memory", "load", "stages"}


@pytest.fixture
def seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[OpenPlan], InProcessSeat]:
    """Return a function that opens a seat in this process, which plans take, too."""
    (tmp_path / "scratch").mkdir()

    def open_seat(plan: OpenPlan | str) -> InProcessSeat:
        from tts_compress.sweep.plan import OpenPlan

        given = OpenPlan.model_validate_json(plan) if isinstance(plan, str) else plan
        return InProcessSeat(given, tmp_path / "scratch")

    monkeypatch.setattr("tts_compress.sweep.run.Seat", open_seat)
    return open_seat


def _executions(planned: Planned) -> dict[str, int]:
    keys = {task.unit.key: task.unit.title for task in planned.tasks}
    log = planned.results().log(keys)
    return {keys[key]: sum("seconds" in one for one in found) for key, found in log.items()}


def _reports(output: Path) -> list[dict[str, Any]]:
    paths = sorted(output.glob("reports/*/*/report.json"))
    return [read_report(path).model_dump(mode="json", exclude=_TIMINGS) for path in paths]


@pytest.mark.usefixtures("made_up")
def test_an_interrupted_sweep_goes_on_and_shares_give_the_same(
    tmp_path: Path,
    write_plan: Callable[..., Path],
    seat: Callable[[OpenPlan], InProcessSeat],
) -> None:
    for name, ways in (("good", {}), ("broken", {"on": "A cat sat down", "fault": "raise"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(ways), encoding="utf-8")
    values = {"voices": ["good.json", "missing.json", "broken.json"], "schemes": ["int8"]}
    planned = plan_sweep(write_plan("whole", **values), Silent())
    (failed,) = planned.failures
    assert (failed.voice, failed.scheme) == ("missing", "")
    assert "missing.json" in failed.reason
    with seat(planned.plan) as place:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(planned, InProcessPool(place, stop_after=4), Silent())
        pool = InProcessPool(place)
        found = run_sweep(planned, pool, Silent())
    assert not found.is_complete
    assert found.left == 0
    assert [(one.voice, one.scheme) for one in found.entries] == [("good", "int8")]
    assert {one.voice for one in found.failures} == {"missing", "broken"}
    reasons = {one.unit: one.reason for one in found.failures}
    assert "by a fault" in reasons["reference broken, shard 1"]
    # What succeeded was done once, though it was begun twice in all.
    assert {*_executions(planned).values()} == {0, 1}
    assert sum(_executions(planned).values()) == len(planned.results().keys())

    only = values | {"voices": ["good.json"]}
    shared = plan_sweep(write_plan("shared", **only), Silent())
    for number in (2, 1):
        with seat(shared.plan) as place:
            done, total = run_share(shared, (number, 2), InProcessPool(place), Silent())
            assert done == total
    with seat(shared.plan) as place:
        merged = merge_shares(shared, InProcessPool(place), Silent())
    assert merged.is_complete
    assert {*_executions(shared).values()} == {1}
    assert _reports(tmp_path / "shared-out") == _reports(tmp_path / "whole-out")
    kept = [entry.model_dump() for entry in found.entries]
    assert [entry.model_dump() for entry in merged.entries] == kept
    page = (tmp_path / "whole-out" / "index.html").read_text(encoding="utf-8")
    assert 'href="reports/good/int8/report.html"' in page
    assert "by a fault" in page
    assert (tmp_path / "whole-out" / "sweep.csv").read_text().count("\n") == 2
