"""Units on a Ray cluster: actors that keep models loaded; on whole nodes for units that time.

The driver holds no state that is not in the results: a worker that dies has its unit done again by
another, and after the loss of the head the sweep is started again and goes on.
"""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.schedule import Outcome, Task

_LONGEST_END_S = 10.0
"""Time that actors have to remove what they kept."""


class _Actor:
    """A seat on a node of the cluster."""

    def __init__(self, open_seat: Callable[[], Any]) -> None:
        self._seat = open_seat()

    def run(self, task: Task) -> Outcome:
        """Do a unit."""
        outcome: Outcome = self._seat.run(*task)
        return outcome

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
    runtime_env: dict[str, Any] | None = None
    """None where there is no actor, or none that could do a unit."""

    ended: Future[Outcome] = field(default_factory=Future)
    """The end of the last unit that was begun."""


class RayPool:
    """Actors, each with a unit at a time.

    Args:
        plan: The plan.
        open_seat: Called in each actor.
        places: The actors to be.
    """

    def __init__(self, plan: OpenPlan, open_seat: Callable[[], Any], places: list[_Place]) -> None:
        self._plan = plan
        self._open_seat = open_seat
        self._places = places

    def seats(self) -> list[int]:
        """Return the numbers of the seats on nodes that are there."""
        nodes = _nodes() if any(place.node for place in self._places) else {}
        there = [
            seat for seat, place in enumerate(self._places) if not place.node or place.node in nodes
        ]
        if not there:
            raise EvaluationError("the Ray cluster has no node left; start it, and sweep again")
        return there

    def start(self, seat: int, task: Task) -> Future[Outcome]:
        """Begin a unit on a seat that does none."""
        place = self._places[seat]
        wanted = self._plan.environment_of(task.unit.voice.spec).runtime_env
        if place.runtime_env != wanted:
            (_end if place.runtime_env is None else _retire)([place])
            place.actor, place.runtime_env = self._create(place, wanted), wanted
        place.ended = Future()
        answer = place.actor.run.remote(task).future()
        answer.add_done_callback(partial(_settle, place, place.ended, task.unit.key))
        return place.ended

    def close(self) -> None:
        """End all actors; those that do nothing remove what they kept."""
        _retire([p for p in self._places if p.runtime_env is not None and p.ended.done()])
        _end(self._places)

    def _create(self, place: _Place, runtime_env: dict[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = place.node and NodeAffinitySchedulingStrategy(place.node, soft=False)
        options = {"num_cpus": place.cpus, "runtime_env": runtime_env or None}
        actor = ray.remote(_Actor).options(**options, scheduling_strategy=there)
        return actor.remote(self._open_seat)


def _settle(place: _Place, ended: Future[Outcome], key: str, answer: Future[Outcome]) -> None:
    """Pass on the end of a unit; an actor or a node that died is a crash."""
    from ray.exceptions import RayError

    error = answer.exception()
    if error is None:
        ended.set_result(answer.result())
    elif isinstance(error, RayError):
        place.runtime_env = None
        words = " ".join(str(error).split())[:300]
        ended.set_result(Outcome(key, "crashed", f"the worker was lost: {words}"))
    else:
        ended.set_exception(error)


def _retire(places: Sequence[_Place]) -> None:
    """End actors that do nothing; they remove what they kept."""
    import ray

    closing = [place.actor.close.remote() for place in places]
    ray.wait(closing, num_returns=len(closing), timeout=_LONGEST_END_S)
    _end(places)


def _end(places: Sequence[_Place]) -> None:
    import ray

    for place in places:
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
