"""Which unit is next: order, dependencies, failures and second tries, whatever does the work."""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from typing import Literal, NamedTuple, Protocol

from tts_compress.progress import Progress
from tts_compress.sweep.units import PHASES, Identity, Unit

_TRIES = 3
"""Times that a unit is begun whose worker dies under it."""

_LONGEST_WAIT_S = 60.0
"""After this time without an end, seats that have come or gone are looked for."""


class Outcome(NamedTuple):
    """The end of one execution."""

    key: str
    state: Literal["done", "failed", "crashed"]
    reason: str = ""


class Task(NamedTuple):
    """A unit with the environment that it is to be done in."""

    unit: Unit
    identity: Identity


class Pool(Protocol):
    """Does units, each on one of its seats."""

    def seats(self) -> Sequence[int]:
        """Return the numbers of the seats that are there, also of those that do a unit."""

    def start(self, seat: int, task: Task) -> Future[Outcome]:
        """Begin a unit on a seat that does none."""

    def close(self) -> None:
        """End all processes."""


class Executor(Protocol):
    """Opens pools."""

    def open(self, *, whole_nodes: bool) -> Pool:
        """Return a pool; one of whole nodes has a seat for each, which nothing else shares."""


class Agenda:
    """The units that remain to be done in a phase.

    Args:
        tasks: The units.
        done: Keys of finished units; grows.
    """

    def __init__(self, tasks: Sequence[Task], done: set[str]) -> None:
        self.lost: dict[str, str] = {}
        """Reasons of the units that no worker survives, by key."""
        self._done = done
        self._tasks = {task.unit.key: task for task in tasks}
        self._ready: dict[tuple[str, str], deque[Task]] = {}
        self._waiting = defaultdict[str, list[Task]](list)
        self._tries = Counter[str]()
        self._last: dict[int, tuple[str, str]] = {}
        for task in tasks:
            self._add(task)

    def take(self, seat: int) -> Task | None:
        """Return the next unit for a seat; rather one of the model that it has loaded."""
        if not self._ready:
            return None
        chain = self._last.get(seat)
        if chain not in self._ready:
            chain = next(iter(self._ready))
        tasks = self._ready.pop(chain)
        task = tasks.popleft()
        if tasks:
            self._ready[chain] = tasks  # behind the others: the next seat has another model
        self._last[seat] = chain
        return task

    def settle(self, outcome: Outcome) -> bool:
        """Take note of an end; return True if the unit will not be tried again."""
        key, state, reason = outcome
        if state == "done":
            self._done.add(key)
            for follower in self._waiting.pop(key, ()):
                self._add(follower)
        elif state == "crashed":
            self._tries[key] += 1
            if self._tries[key] < _TRIES:
                self._add(self._tasks[key])
                return False
            self.lost[key] = f"{reason} ({_TRIES} times)"
        return True

    def _add(self, task: Task) -> None:
        """Make a unit ready, or have it wait for one that it needs.

        What it needs may never come: it failed, which is noted, or is another share's.
        """
        missing = next((key for key in task.unit.needs if key not in self._done), None)
        if missing is None:
            self._ready.setdefault(task.unit.chain, deque()).append(task)
        else:
            self._waiting[missing].append(task)


def run_units(
    tasks: Sequence[Task],
    known: Collection[str],
    executor: Executor,
    progress: Progress,
) -> dict[str, str]:
    """Do what is not done yet, phase by phase.

    Units that fail are noted in the results by whoever does them; those that no worker survives are
    returned, with the reason by key.

    Args:
        tasks: The units, those that others need first.
        known: Keys of units that are done.
        executor: Opens what does them.
        progress: Is advanced with each unit.
    """
    done, lost = set(known), dict[str, str]()
    for stage, kinds in PHASES.items():
        wanted = [task for task in tasks if task.unit.kind in kinds]
        left = [task for task in wanted if task.unit.key not in done]
        if not left:
            continue
        finished = len(wanted) - len(left)
        progress.advance(stage, finished, len(wanted))
        agenda = Agenda(left, done)
        with closing(executor.open(whole_nodes="time" in kinds)) as pool:
            for is_last_try in _run(agenda, pool):
                finished += is_last_try
                progress.advance(stage, finished, len(wanted))
        lost |= agenda.lost
    return lost


def _run(agenda: Agenda, pool: Pool) -> Iterator[bool]:
    """Yield True for each unit that ends for good, False for one that is tried again."""
    running: dict[Future[Outcome], int] = {}
    while True:
        busy = {*running.values()}
        for seat in pool.seats():
            if seat in busy:
                continue
            task = agenda.take(seat)
            if task is None:
                break
            running[pool.start(seat, task)] = seat
        if not running:
            return
        wait(running, _LONGEST_WAIT_S, FIRST_COMPLETED)
        for future in [future for future in running if future.done()]:
            del running[future]
            yield agenda.settle(future.result())
