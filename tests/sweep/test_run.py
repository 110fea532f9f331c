"""Phases: order, dependencies, chains, second tries."""

from __future__ import annotations

import html
import io
import json
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.measures import TIMED
from tests.sweep.conftest import InProcessPool, InProcessRunner
from tts_compress.errors import ArtifactError
from tts_compress.evaluation import read_report
from tts_compress.progress import Silent
from tts_compress.sweep.plan import Identity, Kind, Opened, OpenPlan, Unit
from tts_compress.sweep.run import (
    LocalPool,
    Outcome,
    Planned,
    merge,
    plan_sweep,
    run_share,
    run_sweep,
    run_units,
)

_IDENTITY = Identity(code="", packages={}, recognizer="", measures={})


def _task(
    key: str,
    kind: Kind = "candidate",
    needs: Sequence[str] = (),
    voice: str = "v",
    identity: Identity = _IDENTITY,
) -> Unit:
    opened = Opened(spec=voice, name=voice, family="piper", fingerprint="")
    return Unit(kind=kind, voice=opened, key=key, needs=tuple(needs), identity=identity)


class _Pool:
    """Two workers; their chains end one after the other, as they were begun, as a function says."""

    workers = 2

    def __init__(self, end: Callable[[str], str]) -> None:
        self._end = end
        self._thread = ThreadPoolExecutor(1)
        self._ends: list[Future[list[Outcome]]] = []
        self.begun: list[list[str]] = []
        self.opened: list[bool] = []

    def __call__(self, *, whole_nodes: bool) -> _Pool:
        """Return itself."""
        self.opened.append(whole_nodes)
        return self

    def submit(self, chain: Sequence[Unit]) -> Future[list[Outcome]]:
        """Take note."""
        assert sum(not end.done() for end in self._ends) < self.workers
        keys = [unit.key for unit in chain]
        self.begun.append(keys)
        self._ends.append(self._thread.submit(lambda: [self._finish(key) for key in keys]))
        return self._ends[-1]

    def close(self) -> None:
        """Check that nothing is left."""
        assert all(end.done() for end in self._ends)

    def _finish(self, key: str) -> Outcome:
        time.sleep(0.005)
        state = self._end(key)
        assert state in ("done", "failed", "crashed")
        return Outcome(key, state, f"{key} {state}")  # type: ignore[arg-type]


def _run(
    pool: _Pool, tasks: Sequence[Unit], known: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    lost = run_units(tasks, known, pool, Silent())
    return [key for chain in pool.begun for key in chain], lost


def test_units_wait_for_what_they_need_and_times_are_alone() -> None:
    tasks = [
        _task("r", "report", ["t", "b"]),
        _task("t", "time", ["a"]),
        _task("b", needs=["a"]),
        _task("a", "compress"),
    ]
    pool = _Pool(lambda _: "done")
    assert _run(pool, tasks) == (["a", "b", "t", "r"], {})
    assert pool.opened == [False, False, True, False]


def test_what_is_done_is_not_begun() -> None:
    tasks = [_task("a", "compress"), _task("b", needs=["a"]), _task("c", needs=["a"])]
    assert _run(_Pool(lambda _: "done"), tasks, ["a", "c"])[0] == ["b"]


def test_a_failure_stops_what_needs_it_and_nothing_else() -> None:
    tasks = [_task("a", "compress"), _task("b", needs=["a"]), _task("c", voice="w")]
    pool = _Pool(lambda key: "failed" if key == "a" else "done")
    assert _run(pool, tasks) == (["a", "c"], {})


def test_a_lost_worker_has_its_units_tried_again_alone_thrice_in_all() -> None:
    times: dict[str, int] = {}

    def end(key: str) -> str:
        times[key] = times.get(key, 0) + 1
        return "crashed" if key == "dead" or (key, times[key]) == ("shaky", 1) else "done"

    others = [_task(f"x{number}") for number in range(14)]
    pool = _Pool(end)
    lost = _run(pool, [_task("dead"), _task("shaky"), *others])[1]
    assert lost == {"dead": "dead crashed (3 times)"}
    assert {key: n for key, n in times.items() if n > 1} == {"dead": 3, "shaky": 2}
    assert pool.begun[0] == ["dead", "shaky", "x0", "x1"]
    assert pool.begun[8:] == [["dead"], ["shaky"], ["dead"]]


def test_neighbours_of_one_environment_are_a_chain_and_no_worker_is_left_without() -> None:
    other = _IDENTITY.model_copy(update={"code": "1"})
    tasks = [_task(f"x{n}") for n in range(12)] + [_task(f"y{n}", identity=other) for n in range(4)]
    pool = _Pool(lambda _: "done")
    _run(pool, tasks)
    assert [len(chain) for chain in pool.begun] == [3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert [key for chain in pool.begun for key in chain] == [task.key for task in tasks]
    assert all(len({key[0] for key in chain}) == 1 for chain in pool.begun)
    few = _Pool(lambda _: "done")
    _run(few, [_task("a"), _task("b")])
    assert few.begun == [["a"], ["b"]]


def test_a_thread_keeps_its_process_and_closing_the_pool_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes: list[_Process] = []

    class _Process:
        def __init__(self, plan: str) -> None:
            self.plan, self.units, self.is_closed = plan, list[str](), False
            processes.append(self)

        def run(self, unit: Unit) -> Outcome:
            self.units.append(unit.key)
            return Outcome(unit.key, "done")

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr("tts_compress.sweep.run.UnitProcess", _Process)
    assert LocalPool("plan", 3, whole_nodes=True).workers == 1
    assert run_units([_task("a"), _task("b")], (), partial(LocalPool, "plan", 1), Silent()) == {}
    (process,) = processes
    assert (process.plan, process.units, process.is_closed) == ("plan", ["a", "b"], True)


@pytest.fixture
def runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[OpenPlan], InProcessRunner]:
    """Return a function that opens what does units in this process, which plans take, too."""
    (tmp_path / "scratch").mkdir()

    def open_runner(plan: OpenPlan | str) -> InProcessRunner:
        from tts_compress.sweep.plan import OpenPlan

        given = OpenPlan.model_validate_json(plan) if isinstance(plan, str) else plan
        return InProcessRunner(given, tmp_path / "scratch")

    monkeypatch.setattr("tts_compress.sweep.run.UnitProcess", open_runner)
    return open_runner


def _executions(planned: Planned) -> dict[str, int]:
    keys = {unit.key: unit.title for unit in planned.units}
    log = planned.results().log(keys)
    return {keys[key]: sum("seconds" in one for one in found) for key, found in log.items()}


def _reports(output: Path) -> list[dict[str, Any]]:
    paths = sorted(output.glob("reports/*/*/report.json"))
    return [read_report(path).model_dump(mode="json", exclude=TIMED) for path in paths]


@pytest.mark.slow
@pytest.mark.usefixtures("made_up")
def test_an_interrupted_sweep_goes_on_and_shares_give_the_same(
    tmp_path: Path,
    write_plan: Callable[..., Path],
    runner: Callable[[OpenPlan], InProcessRunner],
) -> None:
    for name, ways in (("good", {}), ("broken", {"on": "A cat sat down", "fault": "raise"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(ways), encoding="utf-8")
    values = {"voices": ["good.json", "missing.json", "broken.json"], "schemes": ["int8"]}
    planned = plan_sweep(write_plan("whole", **values), Silent())
    (failed,) = planned.failures
    assert (failed.voice, failed.scheme) == ("missing", "")
    assert "missing.json" in failed.reason
    with closing(runner(planned.plan)) as place:
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
        with closing(runner(shared.plan)) as place:
            done, total = run_share(shared, (number, 2), InProcessPool(place), Silent())
            assert done == total
    with closing(runner(shared.plan)) as place:
        merged = run_sweep(shared, InProcessPool(place), Silent(), merging=True)
    assert merged.is_complete
    assert {*_executions(shared).values()} == {1}
    assert _reports(tmp_path / "shared-out") == _reports(tmp_path / "whole-out")
    kept = [entry.model_dump() for entry in found.entries]
    assert [entry.model_dump() for entry in merged.entries] == kept
    page = (tmp_path / "whole-out" / "index.html").read_text(encoding="utf-8")
    assert 'href="reports/good/int8/report.html"' in page
    assert "by a fault" in page
    assert (tmp_path / "whole-out" / "sweep.csv").read_text().count("\n") == 2


@pytest.mark.usefixtures("made_up")
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path,
    write_plan: Callable[..., Path],
    runner: Callable[[OpenPlan], InProcessRunner],
) -> None:
    """Every unit was done, and then could not be kept."""
    (tmp_path / "good.json").write_text("{}", encoding="utf-8")
    planned = plan_sweep(write_plan(voices=["good.json"], output="small.toml"), Silent())
    with closing(runner(planned.plan)) as place:
        pool = InProcessPool(place)
        with pytest.raises(ArtifactError, match=f"cannot create '{tmp_path}/small.toml/log'"):
            run_sweep(planned, pool, Silent())
    assert pool.begun == []


@pytest.mark.slow
@pytest.mark.usefixtures("made_up")
def test_a_report_of_something_else_or_none_is_a_failure_of_its_pair(
    tmp_path: Path,
    write_plan: Callable[..., Path],
    runner: Callable[[OpenPlan], InProcessRunner],
) -> None:
    """Whatever lay in the archive was believed: another scheme's size and words, with exit code 0.

    One archive that was cut, or had no report, stopped the page of all voices.
    """
    (tmp_path / "good.json").write_text("{}", encoding="utf-8")
    planned = plan_sweep(
        write_plan(voices=["good.json"], schemes=["int8", "fp16"], shards=1, seeds=[0]),
        Silent(),
    )
    with closing(runner(planned.plan)) as place:
        whole = run_sweep(planned, InProcessPool(place), Silent())
    assert whole.is_complete
    scheme = {u.key: u.scheme.name for u in planned.units if u.kind == "report" and u.scheme}
    archives = {
        name: tmp_path / "plan-out" / "units" / f"{key}.zip" for key, name in scheme.items()
    }
    kept = archives["fp16"].read_bytes()

    def reason_now() -> str:
        found = merge(planned, Silent())
        (failed,) = found.failures
        assert (failed.voice, failed.scheme) == ("good", "fp16")
        assert [entry.scheme for entry in found.entries] == ["int8"]
        assert not found.is_complete
        page = (tmp_path / "plan-out" / "index.html").read_text("utf-8")
        assert failed.reason[:60] in html.unescape(page)
        return failed.reason

    archives["fp16"].write_bytes(archives["int8"].read_bytes())
    assert (
        "is a report of another candidate: 'good/int8', not 'good/fp16'; remove it" in reason_now()
    )
    archives["fp16"].write_bytes(kept[:-100])
    assert "is damaged: File is not a zip file; remove it" in reason_now()
    with zipfile.ZipFile(archives["fp16"], "w") as archive:
        archive.writestr("notes.txt", "x")
    assert "no item named 'report.json' in the archive" in reason_now()
    with zipfile.ZipFile(archives["fp16"], "w") as archive:
        archive.writestr("report.json", "{}")
    assert "is not an evaluation report: " in reason_now()
    for change in (("candidate", "sha256"), ("reference", "sha256"), ("suite", "sha256")):
        document = json.loads(zipfile.ZipFile(io.BytesIO(kept)).read("report.json"))
        document[change[0]][change[1]] = "0" * 64
        with zipfile.ZipFile(archives["fp16"], "w") as archive:
            archive.writestr("report.json", json.dumps(document))
        assert f"not '{'0' * 64}'" not in (said := reason_now())
        assert "is a report of another " in said
    archives["fp16"].write_bytes(kept)
    assert merge(planned, Silent()) == whole
