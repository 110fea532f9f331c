"""Which unit is next: order, dependencies, failures and second tries, whatever does the work."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from tts_compress.progress import Progress
from tts_compress.sweep.units import PHASES, Identity, Unit

_TRIES = 3
"""Times that a unit is begun whose worker dies under it."""


class Outcome(NamedTuple):
    """The end of one execution."""

    key: str
    state: Literal["done", "failed", "crashed"]
    reason: str = ""
    seconds: float | None = None
    """None for a unit that was done before, by someone else."""


class Task(NamedTuple):
    """A unit with the environment that it is to be done in."""

    unit: Unit
    identity: Identity


class Pool(Protocol):
    """Does units, each on one of its seats."""

    def idle(self) -> Iterable[int]:
        """Return the numbers of the seats that have nothing to do."""

    def start(self, seat: int, task: Task) -> None:
        """Begin a unit."""

    def wait(self) -> Iterable[tuple[int, Outcome]]:
        """Wait until units have ended; return them with their seats."""

    def close(self) -> None:
        """End all processes."""


class Executor(Protocol):
    """Opens pools."""

    def open(self, *, whole_nodes: bool) -> Pool:
        """Return a pool; one of whole nodes has a seat for each, which nothing else shares."""


@dataclass(slots=True)
class Agenda:
    """The units that remain to be done in a phase."""

    tasks: Sequence[Task]
    done: set[str]
    """Keys of finished units; grows."""

    lost: dict[str, str] = field(default_factory=dict)
    """Reasons of the units that no worker survives, by key."""

    _ready: dict[tuple[str, str], deque[Task]] = field(default_factory=dict)
    _waiting: dict[str, list[Task]] = field(default_factory=dict)
    _running: dict[str, Task] = field(default_factory=dict)
    _tries: dict[str, int] = field(default_factory=dict)
    _last: dict[int, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for task in self.tasks:
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
        self._running[task.unit.key] = task
        return task

    @property
    def is_running(self) -> bool:
        """True while units are being done."""
        return bool(self._running)

    def settle(self, outcome: Outcome) -> bool:
        """Take note of an end; return True if the unit will not be tried again."""
        task = self._running.pop(outcome.key)
        unit = task.unit
        if outcome.state == "done":
            self.done.add(unit.key)
            for follower in self._waiting.pop(unit.key, ()):
                self._add(follower)
            return True
        tries = self._tries[unit.key] = self._tries.get(unit.key, 0) + 1
        if outcome.state == "crashed" and tries < _TRIES:
            self._add(task)
            return False
        if outcome.state == "crashed":
            self.lost[unit.key] = f"{outcome.reason} ({tries} times)"
        return True

    def _add(self, task: Task) -> None:
        """Make a unit ready, or have it wait for one that it needs.

        What it needs may never come: it failed, which is noted, or is another share's.
        """
        missing = next((key for key in task.unit.needs if key not in self.done), None)
        if missing is None:
            self._ready.setdefault(task.unit.chain, deque()).append(task)
        else:
            self._waiting.setdefault(missing, []).append(task)


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
        pool = executor.open(whole_nodes="time" in kinds)
        try:
            for outcome in _run(agenda, pool):
                finished += outcome
                progress.advance(stage, finished, len(wanted))
        finally:
            pool.close()
        lost |= agenda.lost
    return lost


def _run(agenda: Agenda, pool: Pool) -> Iterable[bool]:
    """Yield True for each unit that ends for good, False for one that is tried again."""
    while True:
        for seat in list(pool.idle()):
            task = agenda.take(seat)
            if task is None:
                break
            pool.start(seat, task)
        if not agenda.is_running:
            return
        for _, outcome in pool.wait():
            yield agenda.settle(outcome)
