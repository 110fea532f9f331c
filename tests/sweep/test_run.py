"""Phases: order, dependencies, chains, second tries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from tts_compress.progress import Silent
from tts_compress.sweep.executors import LocalPool, Outcome, Task
from tts_compress.sweep.plan import Identity, Kind, Opened, Unit
from tts_compress.sweep.run import run_units

_IDENTITY = Identity(code="", packages={}, recognizer="", measures={})


def _task(
    key: str,
    kind: Kind = "candidate",
    needs: Sequence[str] = (),
    voice: str = "v",
    identity: Identity = _IDENTITY,
) -> Task:
    opened = Opened(spec=voice, name=voice, family="piper", fingerprint="")
    return Task(Unit(kind=kind, voice=opened, key=key, needs=tuple(needs)), identity)


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

    def submit(self, chain: Sequence[Task]) -> Future[list[Outcome]]:
        """Take note."""
        assert sum(not end.done() for end in self._ends) < self.workers
        keys = [task.unit.key for task in chain]
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
    pool: _Pool, tasks: Sequence[Task], known: Sequence[str] = ()
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
    assert [key for chain in pool.begun for key in chain] == [task.unit.key for task in tasks]
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

        def run(self, unit: Unit, _: Identity) -> Outcome:
            self.units.append(unit.key)
            return Outcome(unit.key, "done")

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr("tts_compress.sweep.executors.UnitProcess", _Process)
    assert LocalPool("plan", 3, whole_nodes=True).workers == 1
    assert run_units([_task("a"), _task("b")], (), partial(LocalPool, "plan", 1), Silent()) == {}
    (process,) = processes
    assert (process.plan, process.units, process.is_closed) == ("plan", ["a", "b"], True)
