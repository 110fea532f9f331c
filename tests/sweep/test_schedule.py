"""The schedule: order, dependencies, second tries."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from tts_compress.progress import Silent
from tts_compress.sweep.schedule import Outcome, Task, run_units
from tts_compress.sweep.units import Identity, Kind, Opened, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_IDENTITY = Identity(code="", packages={}, recognizer="", measures={})


def _task(key: str, kind: Kind = "candidate", needs: Sequence[str] = (), voice: str = "v") -> Task:
    opened = Opened(spec=voice, name=voice, family="piper", fingerprint="")
    return Task(Unit(kind=kind, voice=opened, key=key, needs=tuple(needs)), _IDENTITY)


class _Pool:
    """Two seats; their units end one after the other, as they were begun, as a function says."""

    def __init__(self, end: Callable[[str], str]) -> None:
        self._end = end
        self._thread = ThreadPoolExecutor(1)
        self._ends: dict[int, Future[Outcome]] = {}
        self.begun: list[tuple[int, str]] = []
        self.opened: list[bool] = []

    def open(self, *, whole_nodes: bool) -> _Pool:
        """Return itself."""
        self.opened.append(whole_nodes)
        return self

    def seats(self) -> list[int]:
        """Return both seats."""
        return [0, 1]

    def start(self, seat: int, task: Task) -> Future[Outcome]:
        """Take note."""
        assert seat not in self._ends or self._ends[seat].done(), "a seat does one at a time"
        self.begun.append((seat, task.unit.key))
        self._ends[seat] = self._thread.submit(self._finish, task.unit.key)
        return self._ends[seat]

    def close(self) -> None:
        """Check that nothing is left."""
        assert all(end.done() for end in self._ends.values())

    def _finish(self, key: str) -> Outcome:
        time.sleep(0.005)
        state = self._end(key)
        assert state in ("done", "failed", "crashed")
        return Outcome(key, state, f"{key} {state}")  # type: ignore[arg-type]


def _run(
    pool: _Pool, tasks: Sequence[Task], known: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    lost = run_units(tasks, known, pool, Silent())
    return [key for _, key in pool.begun], lost


def test_units_wait_for_what_they_need_and_times_are_alone() -> None:
    tasks = [
        _task("r", "report", ["t", "b"]),
        _task("t", "time", ["a"]),
        _task("b", needs=["a"]),
        _task("a", "compress"),
    ]
    pool = _Pool(lambda _: "done")
    assert _run(pool, tasks) == (["a", "b", "t", "r"], {})
    assert pool.opened == [False, True, False]


def test_what_is_done_is_not_begun() -> None:
    tasks = [_task("a", "compress"), _task("b", needs=["a"]), _task("c", needs=["a"])]
    assert _run(_Pool(lambda _: "done"), tasks, ["a", "c"])[0] == ["b"]


def test_a_failure_stops_what_needs_it_and_nothing_else() -> None:
    tasks = [_task("a", "compress"), _task("b", needs=["a"]), _task("c", voice="w")]
    pool = _Pool(lambda key: "failed" if key == "a" else "done")
    assert _run(pool, tasks) == (["a", "c"], {})


def test_a_lost_worker_has_its_unit_tried_again_thrice_in_all() -> None:
    times: dict[str, int] = {}

    def end(key: str) -> str:
        times[key] = times.get(key, 0) + 1
        return "crashed" if key == "dead" or times[key] == 1 else "done"

    lost = _run(_Pool(end), [_task("dead"), _task("shaky", voice="w")])[1]
    assert times == {"dead": 3, "shaky": 2}
    assert lost == {"dead": "dead crashed (3 times)"}


def test_a_seat_stays_with_the_model_that_it_has_loaded() -> None:
    tasks = [_task(f"{voice}{n}", voice=voice) for n in range(3) for voice in ("x", "y")]
    pool = _Pool(lambda _: "done")
    _run(pool, tasks)
    seats = {voice: {seat for seat, key in pool.begun if key[0] == voice} for voice in "xy"}
    assert seats == {"x": {0}, "y": {1}}
