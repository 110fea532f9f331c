"""The schedule: order, dependencies, second tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.progress import Silent
from tts_compress.sweep.schedule import Outcome, Task, run_units
from tts_compress.sweep.units import Identity, Kind, Opened, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_IDENTITY = Identity(code="", packages={}, recognizer="", measures={})


def _task(key: str, kind: Kind = "candidate", needs: Sequence[str] = (), voice: str = "v") -> Task:
    opened = Opened(spec=voice, name=voice, family="piper", fingerprint="")
    return Task(Unit(kind=kind, voice=opened, key=key, needs=tuple(needs)), _IDENTITY)


class _Pool:
    """Two seats; ends the unit that was begun first, as a function says."""

    def __init__(self, end: Callable[[str], str]) -> None:
        self._end = end
        self._busy: list[tuple[int, str]] = []
        self.begun: list[tuple[int, str]] = []
        self.opened: list[bool] = []

    def open(self, *, whole_nodes: bool) -> _Pool:
        """Return itself."""
        self.opened.append(whole_nodes)
        return self

    def idle(self) -> list[int]:
        """Return the free seats."""
        return [seat for seat in range(2) if seat not in dict(self._busy)]

    def start(self, seat: int, task: Task) -> None:
        """Take note."""
        self._busy.append((seat, task.unit.key))
        self.begun.append((seat, task.unit.key))

    def wait(self) -> Iterator[tuple[int, Outcome]]:
        """End the first one."""
        seat, key = self._busy.pop(0)
        state = self._end(key)
        assert state in ("done", "failed", "crashed")
        yield seat, Outcome(key, state, f"{key} {state}")  # type: ignore[arg-type]

    def close(self) -> None:
        """Check that nothing is left."""
        assert not self._busy


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
