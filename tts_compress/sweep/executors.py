"""Executors of units: processes of this machine, or tasks of a Ray cluster.

No state is here that is not in the results: a worker that dies has its unit done again by another,
and a sweep whose driver is lost is started again and goes on.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from threading import local
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import EvaluationError, TTSCompressError, needing
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import cache_folder
from tts_compress.folders import temporary_folder
from tts_compress.sweep.plan import Environment, Identity, OpenPlan, Unit

_PROGRAM = ("-P", "-m", "tts_compress.sweep.work")


class Task(NamedTuple):
    """A unit with the environment that it is to be done in."""

    unit: Unit
    identity: Identity


class Outcome(NamedTuple):
    """The end of one execution."""

    key: str
    state: Literal["done", "failed", "crashed"]
    reason: str = ""


class Pool(Protocol):
    """Does chains of units, a number of chains at a time."""

    @property
    def workers(self) -> int:
        """Number of chains at a time."""

    def submit(self, chain: Sequence[Task]) -> Future[list[Outcome]]:
        """Begin a chain: units of one environment, done one after the other."""

    def close(self) -> None:
        """End all processes."""


Executor: TypeAlias = Callable[..., Pool]
"""Opens a pool; with `whole_nodes=True` each of its chains has a machine that nothing else uses."""


class UnitProcess:
    """Does units in a process that it starts, another one for each Python."""

    def __init__(self, plan: str) -> None:
        self._plan = OpenPlan.model_validate_json(plan)
        folder = cache_folder() / "sweeps"
        folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._file = self._stack.enter_context(temporary_folder(folder)) / "plan.json"
        write_text_atomically(self._file, plan)
        self._python: str | None = None
        self._worker: Worker | None = None
        self._is_closed = False

    def describe(self, environment: Environment, specs: list[str]) -> dict[str, Any]:
        """Return the identity of an environment, and its voices by spec."""
        return self._open(environment).ask("describe", specs=specs)

    def run(self, unit: Unit, identity: Identity) -> Outcome:
        """Do a unit. An error that the unit does not explain is a crash: it may be tried again."""
        try:
            worker = self._open(self._plan.environment_of(unit.voice.spec))
            answer = worker.ask("run", unit=unit.model_dump(), identity=identity.model_dump())
        except TTSCompressError as error:
            self._end()
            return Outcome(unit.key, "crashed", str(error))
        if "failed" in answer:
            return Outcome(unit.key, "failed", answer["failed"])
        return Outcome(unit.key, "done")

    def close(self) -> None:
        """End the process and remove what it kept; no other one starts."""
        self._is_closed = True
        self._end()
        self._stack.close()

    def _open(self, environment: Environment) -> Worker:
        python = environment.python or sys.executable
        if self._is_closed:
            raise EvaluationError("the sweep was stopped")
        if self._worker is None or python != self._python:
            self._end()
            options = EvaluationOptions(
                timeout_s=self._plan.unit_hours * 3600, worker=(python, *_PROGRAM)
            )
            self._worker = Worker("sweep", str(self._file), options, shown="host")
            self._python = python
        return self._worker

    def _end(self) -> None:
        if self._worker is not None:
            with suppress(OSError):
                self._worker.close()
            self._worker = None


class LocalPool:
    """Threads, each with a process that keeps its models from one chain to the next.

    Args:
        plan: The plan, as JSON.
        workers: Number of chains at a time.
        whole_nodes: Do a single one at a time.
    """

    def __init__(self, plan: str, workers: int, *, whole_nodes: bool = False) -> None:
        self.workers = 1 if whole_nodes else workers
        self._plan = plan
        self._threads = ThreadPoolExecutor(self.workers)
        self._of_thread = local()
        self._processes: list[UnitProcess] = []

    def submit(self, chain: Sequence[Task]) -> Future[list[Outcome]]:
        """Begin a chain."""
        return self._threads.submit(self._run, chain)

    def close(self) -> None:
        """End all processes; chains that have not begun are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()
        self._threads.shutdown()

    def _run(self, chain: Sequence[Task]) -> list[Outcome]:
        if not hasattr(self._of_thread, "process"):
            self._of_thread.process = UnitProcess(self._plan)
            self._processes.append(self._of_thread.process)
        return [self._of_thread.process.run(*task) for task in chain]


class RayPool:
    """Tasks of a cluster, each of which does a chain in a process of its own.

    The cluster is the one that `RAY_ADDRESS` names, or one of this machine.

    Args:
        plan: The plan.
        workers: Chains at a time; None for as many as the cluster has processors.
        open_process: Returns a `UnitProcess`, wherever it is called.
        whole_nodes: Give each chain all processors of a node.
    """

    def __init__(
        self,
        plan: OpenPlan,
        workers: int | None,
        open_process: Callable[[], Any],
        *,
        whole_nodes: bool,
    ) -> None:
        connect(workers)
        nodes = _nodes()
        self.workers = len(nodes) if whole_nodes else workers or int(sum(nodes.values()))
        self._plan, self._open_process, self._whole_nodes = plan, open_process, whole_nodes
        self._running: dict[Any, str | None] = {}
        """Chains that have not ended, and their nodes."""

    def submit(self, chain: Sequence[Task]) -> Future[list[Outcome]]:
        """Begin a chain."""
        import ray

        environment = self._plan.environment_of(chain[0].unit.voice.spec)
        node, resources = self._free_node() if self._whole_nodes else (None, {"num_cpus": 1})
        task = ray.remote(_run_chain).options(
            max_retries=0, runtime_env=environment.runtime_env or None, **resources
        )
        answer = task.remote(self._open_process, chain)
        self._running[answer] = node
        ended: Future[list[Outcome]] = Future()
        answer.future().add_done_callback(partial(self._settle, ended, answer, chain))
        return ended

    def close(self) -> None:
        """End all tasks."""
        import ray

        for answer in [*self._running]:
            ray.cancel(answer, force=True)

    def _free_node(self) -> tuple[str, dict[str, Any]]:
        """Return the node with the fewest chains, and options for all of its processors."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes, busy = _nodes(), [*self._running.values()]
        if not nodes:
            raise EvaluationError("the Ray cluster has no node left; start it, and sweep again")
        node = min(nodes, key=busy.count)
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return node, {"num_cpus": nodes[node], "scheduling_strategy": there}

    def _settle(
        self,
        ended: Future[list[Outcome]],
        answer: Any,
        chain: Sequence[Task],
        outcomes: Future[list[Outcome]],
    ) -> None:
        """Pass on the end of a chain; a worker or a node that died is a crash of its units."""
        from ray.exceptions import RayError

        self._running.pop(answer, None)
        error = outcomes.exception()
        if isinstance(error, RayError):
            why = f"the worker was lost: {' '.join(str(error).split())[:300]}"
            ended.set_result([Outcome(task.unit.key, "crashed", why) for task in chain])
        elif error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(outcomes.result())


def _run_chain(open_process: Callable[[], Any], chain: Sequence[Task]) -> list[Outcome]:
    """Do units in a process that ends with the last one."""
    with closing(open_process()) as process:
        return [process.run(*task) for task in chain]


def connect(workers: int | None) -> None:
    """Join the cluster, or start one of this machine."""
    with needing("ray"):
        import ray
    if ray.is_initialized():
        return
    try:
        joins = "RAY_ADDRESS" in os.environ
        here: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **({} if joins else here))
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


EXECUTORS: Mapping[str, Callable[[OpenPlan, int | None], Executor]] = {
    "local": lambda plan, workers: partial(
        LocalPool, plan.model_dump_json(), workers or os.cpu_count() or 1
    ),
    "ray": lambda plan, workers: partial(
        RayPool, plan, workers, partial(UnitProcess, plan.model_dump_json())
    ),
}
"""Executors by name, of a plan and of as many workers as were asked for."""
