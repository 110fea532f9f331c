"""Units on a Ray cluster: actors that keep models loaded; on whole nodes for units that time.

The driver holds no state that is not in the results: a worker that dies has its unit done again by
another, and after the loss of the head the sweep is started again and goes on.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.schedule import Outcome, Task

_LONGEST_WAIT_S = 60.0
"""After this time without an end, nodes that have come or gone are looked for."""

_LONGEST_END_S = 10.0
"""Time that actors have to remove what they kept."""


class _Actor:
    """A seat on a node of the cluster."""

    def __init__(self, open_seat: Callable[[], Any]) -> None:
        self._seat = open_seat()

    def run(self, task: Task) -> Outcome:
        """Do a unit."""
        found: Outcome = self._seat.run(*task)
        return found

    def close(self) -> None:
        """End the seat's process and remove what it kept."""
        self._seat.close()


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Actors of a cluster: the one that `RAY_ADDRESS` names, or one of this machine."""

    plan: OpenPlan
    workers: int | None
    """Units at a time; None for as many as the cluster has processors."""

    open_seat: Callable[[], Any]
    """Returns a seat, wherever it is called."""

    def open(self, *, whole_nodes: bool) -> "RayPool":
        """Return a pool; one of whole nodes has a seat for each, with all of its processors."""
        connect(self.workers)
        if whole_nodes:
            seats = [_Place(cpus, node) for node, cpus in _nodes().items()]
        else:
            count = self.workers or int(sum(_nodes().values()))
            seats = [_Place(1.0) for _ in range(count)]
        return RayPool(self.plan, self.open_seat, seats)


@dataclass(slots=True)
class _Place:
    """An actor, once there is one."""

    cpus: float
    node: str | None = None
    """The only node it may be on; None for any."""

    actor: Any = None
    runtime_env: dict[str, Any] = field(default_factory=dict)


class RayPool:
    """Actors, each with a unit at a time.

    Args:
        plan: The plan.
        open_seat: Called in each actor.
        places: The actors to be.
    """

    def __init__(
        self, plan: OpenPlan, open_seat: Callable[[], Any], places: list["_Place"]
    ) -> None:
        self._plan = plan
        self._open_seat = open_seat
        self._places = places
        self._busy: dict[Any, tuple[int, str]] = {}

    def idle(self) -> list[int]:
        """Return the numbers of the seats that have nothing to do, on nodes that are there."""
        free = self._free()
        if any(self._places[number].node for number in free):
            nodes = _nodes()
            free = [n for n in free if (node := self._places[n].node) is None or node in nodes]
        if not (free or self._busy):
            raise EvaluationError("the Ray cluster has no node left; start it, and sweep again")
        return free

    def start(self, seat: int, task: Task) -> None:
        """Begin a unit."""
        place = self._places[seat]
        wanted = self._plan.environment_of(task.unit.voice.spec).runtime_env
        if place.actor is None or place.runtime_env != wanted:
            self._retire([place])
            place.actor, place.runtime_env = self._create(place, wanted), wanted
        self._busy[place.actor.run.remote(task)] = (seat, task.unit.key)

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until units have ended; return them with their seats."""
        import ray

        ended, rest = ray.wait(list(self._busy), num_returns=1, timeout=_LONGEST_WAIT_S)
        if ended and rest:  # with thousands of actors many have ended meanwhile
            more, _ = ray.wait(rest, num_returns=len(rest), timeout=0)
            ended += more
        found = []
        for reference in ended:
            seat, key = self._busy.pop(reference)
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError as error:  # the actor or its node died
                self._end(self._places[seat])
                words = " ".join(str(error).split())[:300]
                outcome = Outcome(key, "crashed", f"the worker was lost: {words}")
            found.append((seat, outcome))
        return found

    def close(self) -> None:
        """End all actors; those that do nothing remove what they kept."""
        self._retire([self._places[number] for number in self._free()])
        for place in self._places:
            self._end(place)

    def _retire(self, places: list[_Place]) -> None:
        """End actors that do nothing."""
        import ray

        closing = [place.actor.close.remote() for place in places if place.actor is not None]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_LONGEST_END_S)
        for place in places:
            self._end(place)

    def _free(self) -> list[int]:
        busy = {seat for seat, _ in self._busy.values()}
        return [number for number in range(len(self._places)) if number not in busy]

    def _create(self, place: _Place, runtime_env: dict[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = {}
        if place.node is not None:
            affinity = NodeAffinitySchedulingStrategy(place.node, soft=False)
            where = {"scheduling_strategy": affinity}
        options = {"num_cpus": place.cpus, "runtime_env": runtime_env or None, **where}
        return ray.remote(_Actor).options(**options).remote(self._open_seat)

    def _end(self, place: _Place) -> None:
        import ray

        if place.actor is not None:
            ray.kill(place.actor)
            place.actor = None


def connect(workers: int | None) -> None:
    """Join the cluster, or start one of this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        EvaluationError: The cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    if ray.is_initialized():
        return
    try:
        joins = "RAY_ADDRESS" in os.environ
        own: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **({} if joins else own))
    except (ConnectionError, RuntimeError) as error:
        raise EvaluationError(
            f"cannot join the Ray cluster: {error}; a cluster that asks for a token (as Ray 2.60 "
            "does by default) is joined with RAY_AUTH_MODE=token in the environment"
        ) from error


def _nodes() -> dict[str, float]:
    """Return the processors of each node that has some."""
    import ray

    return {
        node["NodeID"]: node["Resources"]["CPU"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    }
