"""Units on this machine: a process per seat, and one alone for units that time."""

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from tts_compress.sweep.schedule import Outcome, Task
from tts_compress.sweep.seat import Seat


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Processes of this machine."""

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
        self._busy: dict[Future[Outcome], int] = {}

    def idle(self) -> list[int]:
        """Return the numbers of the seats that have nothing to do."""
        busy = set(self._busy.values())
        return [number for number in range(len(self._seats)) if number not in busy]

    def start(self, seat: int, task: Task) -> None:
        """Begin a unit."""
        self._busy[self._threads.submit(self._seats[seat].run, *task)] = seat

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until units have ended; return them with their seats."""
        ended, _ = wait(self._busy, return_when=FIRST_COMPLETED)
        return [(self._busy.pop(future), future.result()) for future in ended]

    def close(self) -> None:
        """End all processes."""
        for seat in self._seats:
            seat.close()
        self._threads.shutdown(cancel_futures=True)
