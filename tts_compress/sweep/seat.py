"""Seats, where units are done one at a time: a process per environment, started when needed."""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import TTSCompressError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import cache_folder
from tts_compress.folders import temporary_folder
from tts_compress.sweep.plan import Environment, OpenPlan
from tts_compress.sweep.schedule import Outcome, Task
from tts_compress.sweep.units import Identity, Unit

_PROGRAM = ("-P", "-m", "tts_compress.sweep.work")


class Seat:
    """Does units in a process that it starts.

    Args:
        plan: The plan, as JSON.
    """

    def __init__(self, plan: str) -> None:
        self._plan = OpenPlan.model_validate_json(plan)
        folder = cache_folder() / "sweeps"
        folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._file = self._stack.enter_context(temporary_folder(folder)) / "plan.json"
        write_text_atomically(self._file, plan)
        self._python: str | None = None
        self._host: Worker | None = None

    def describe(self, environment: Environment, specs: list[str]) -> dict[str, Any]:
        """Return the identity of an environment, and its voices by spec."""
        return self._open(environment).ask("describe", specs=specs)

    def run(self, unit: Unit, identity: Identity) -> Outcome:
        """Do a unit. An error that the unit does not explain is a crash: it may be tried again."""
        try:
            host = self._open(self._plan.environment_of(unit.voice.spec))
            answer = host.ask("run", unit=unit.model_dump(), identity=identity.model_dump())
        except TTSCompressError as error:
            self._end()
            return Outcome(unit.key, "crashed", str(error))
        if "failed" in answer:
            return Outcome(unit.key, "failed", answer["failed"])
        return Outcome(unit.key, "done")

    def close(self) -> None:
        """End the process and remove what it kept."""
        self._end()
        self._stack.close()

    def _open(self, environment: Environment) -> Worker:
        python = environment.python or sys.executable
        if self._host is None or python != self._python:
            self._end()
            options = EvaluationOptions(
                timeout_s=self._plan.unit_hours * 3600, worker=(python, *_PROGRAM)
            )
            self._host = Worker("sweep", str(self._file), options, shown="host")
            self._python = python
        return self._host

    def _end(self) -> None:
        if self._host is not None:
            with suppress(OSError):
                self._host.close()
            self._host = None


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Processes of this machine, one for each seat, and one alone for units that time."""

    plan: str
    """The plan, as JSON."""

    workers: int

    def open(self, *, whole_nodes: bool) -> "LocalPool":
        """Return a pool; one of whole nodes has a single seat."""
        return LocalPool(self.plan, 1 if whole_nodes else self.workers)


class LocalPool:
    """Seats, and a thread for each.

    Args:
        plan: The plan, as JSON.
        seats: Number of units at a time.
    """

    def __init__(self, plan: str, seats: int) -> None:
        self._seats = [Seat(plan) for _ in range(seats)]
        self._threads = ThreadPoolExecutor(seats)

    def seats(self) -> range:
        """Return the numbers of the seats."""
        return range(len(self._seats))

    def start(self, seat: int, task: Task) -> Future[Outcome]:
        """Begin a unit on a seat that does none."""
        return self._threads.submit(self._seats[seat].run, *task)

    def close(self) -> None:
        """End all processes."""
        for seat in self._seats:
            seat.close()
        self._threads.shutdown(cancel_futures=True)
