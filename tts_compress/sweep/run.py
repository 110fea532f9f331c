"""A sweep from its plan to its document, phase by phase, and the executors of its units.

Executors are processes of this machine, or tasks of a Ray cluster. No state is here that is not in
the results: a worker that dies has its unit done again by another, and a sweep whose driver is lost
is started again and goes on.
"""

import logging
import math
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import local
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import EvaluationError, RecipeError, TTSCompressError, needing, reason
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import cache_folder
from tts_compress.folders import temporary_folder
from tts_compress.progress import Progress
from tts_compress.sweep.plan import (
    PHASES,
    Environment,
    Failure,
    Identity,
    Opened,
    OpenPlan,
    Unit,
    read_plan,
    share_of,
    units_of,
)
from tts_compress.sweep.report import SweepReport, merge_reports, write_sweep
from tts_compress.sweep.results import Results, open_results

_PROGRAM = ("-P", "-m", "tts_compress.sweep.work")


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

    def submit(self, chain: Sequence[Unit]) -> Future[list[Outcome]]:
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

    def run(self, unit: Unit) -> Outcome:
        """Do a unit. An error that the unit does not explain is a crash: it may be tried again."""
        try:
            worker = self._open(self._plan.environment_of(unit.voice.spec))
            answer = worker.ask("run", unit=unit.model_dump())
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

    def submit(self, chain: Sequence[Unit]) -> Future[list[Outcome]]:
        """Begin a chain."""
        return self._threads.submit(self._run, chain)

    def close(self) -> None:
        """End all processes; chains that have not begun are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()
        self._threads.shutdown()

    def _run(self, chain: Sequence[Unit]) -> list[Outcome]:
        if not hasattr(self._of_thread, "process"):
            self._of_thread.process = UnitProcess(self._plan)
            self._processes.append(self._of_thread.process)
        return [self._of_thread.process.run(unit) for unit in chain]


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

    def submit(self, chain: Sequence[Unit]) -> Future[list[Outcome]]:
        """Begin a chain."""
        import ray

        environment = self._plan.environment_of(chain[0].voice.spec)
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
        chain: Sequence[Unit],
        outcomes: Future[list[Outcome]],
    ) -> None:
        """Pass on the end of a chain; a worker or a node that died is a crash of its units."""
        from ray.exceptions import RayError

        self._running.pop(answer, None)
        error = outcomes.exception()
        if isinstance(error, RayError):
            why = f"the worker was lost: {' '.join(str(error).split())[:300]}"
            ended.set_result([Outcome(unit.key, "crashed", why) for unit in chain])
        elif error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(outcomes.result())


def _run_chain(open_process: Callable[[], Any], chain: Sequence[Unit]) -> list[Outcome]:
    """Do units in a process that ends with the last one."""
    with closing(open_process()) as process:
        return [process.run(unit) for unit in chain]


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


_TRIES = 3
"""Times that a unit is begun whose worker dies under it."""

_CHAINS = 2
"""A chain has so many times less than a worker's share of what is left: long ones share models,
and the short ones at the end keep all workers busy."""

_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A sweep whose voices are opened: all of its units."""

    plan: OpenPlan
    units: Sequence[Unit]
    """Those that others need first."""

    failures: Sequence[Failure]
    """Voices that cannot be opened, and pairs that no recipe covers."""

    def results(self) -> Results:
        """Return the results of units."""
        return open_results(self.plan.output)


def plan_sweep(path: Path, progress: Progress) -> Planned:
    """Open a plan's voices and return its units."""
    plan = read_plan(path)
    open_results(plan.output)
    names = name_voices(plan.voices)
    described: dict[str, tuple[Identity, dict[str, str]]] = {}
    progress.advance("open voices", 0, len(plan.voices))
    with closing(UnitProcess(plan.model_dump_json())) as process:
        for environment, specs in _by_environment(plan):
            answer = process.describe(environment, specs)
            identity = Identity.model_validate(answer["identity"])
            described |= {spec: (identity, answer["voices"][spec]) for spec in specs}
            progress.advance("open voices", len(described), len(plan.voices))
    units: dict[str, Unit] = {}
    failures = []
    for spec in plan.voices:
        identity, about = described[spec]
        if "reason" in about:
            failures.append(Failure(voice=names[spec], reason=about["reason"]))
            continue
        voice = Opened(spec=spec, name=names[spec], **about)
        for scheme in plan.schemes:
            try:
                of_pair = units_of(plan, voice, scheme, identity)
            except TTSCompressError as error:
                why = reason(error)
                failures.append(Failure(voice=voice.name, scheme=scheme.name, reason=why))
                continue
            units |= {unit.key: unit for unit in of_pair}
    return Planned(plan=plan, units=[*units.values()], failures=failures)


def run_sweep(
    planned: Planned, executor: Executor, progress: Progress, *, merging: bool = False
) -> SweepReport:
    """Do what is not done yet, of shares that are merged only reports; write document and page."""
    units = [unit for unit in planned.units if not merging or unit.kind == "report"]
    _run(planned, units, executor, progress)
    return merge(planned, progress)


def run_share(
    planned: Planned, share: tuple[int, int], executor: Executor, progress: Progress
) -> tuple[int, int]:
    """Do a share of the units; return how many of how many are done then."""
    mine = {unit.key for unit in share_of(planned.units, *share)}
    _run(planned, [unit for unit in planned.units if unit.key in mine], executor, progress)
    return len(mine & planned.results().keys()), len(mine)


def merge(planned: Planned, progress: Progress) -> SweepReport:
    """Write the document of what is done, and its page; return the document."""
    results = planned.results()
    report = merge_reports(planned.plan, results, planned.units, planned.failures, progress)
    write_sweep(report, results)
    return report


def _run(planned: Planned, units: Sequence[Unit], executor: Executor, progress: Progress) -> None:
    results = planned.results()
    results.files.write("log/.begun", b"")  # what cannot be written is refused before the work
    lost = run_units(units, results.keys(), executor, progress)
    titles = {unit.key: unit.title for unit in units}
    for key, why in lost.items():
        results.note(key, {"unit": titles[key], "failed": why})


def run_units(
    units: Sequence[Unit],
    finished: Collection[str],
    executor: Executor,
    progress: Progress,
) -> dict[str, str]:
    """Do what is not done yet, phase by phase.

    Units that fail are noted in the results by whoever does them, and those that need them are left
    out. Units that no worker survives are returned, with the reason by key.
    """
    done, lost = set(finished), dict[str, str]()
    for phase, kinds in PHASES.items():
        wanted = [unit for unit in units if unit.kind in kinds]
        left = [unit for unit in wanted if unit.key not in done]
        if not left:
            continue
        ready = [unit for unit in left if done.issuperset(unit.needs)]
        count = len(wanted) - len(left)
        progress.advance(phase, count, len(wanted))
        with closing(executor(whole_nodes="time" in kinds)) as pool:
            for key, state, why in _run_phase(ready, pool):
                if state == "done":
                    done.add(key)
                elif state == "crashed":
                    lost[key] = why
                count += 1
                progress.advance(phase, count, len(wanted))
    return lost


def _run_phase(units: Sequence[Unit], pool: Pool) -> Iterator[Outcome]:
    """Yield the last outcome of each unit. One whose worker died is tried again, alone."""
    waiting = deque(_chains(units, _CHAINS * pool.workers))
    running: dict[Future[list[Outcome]], Sequence[Unit]] = {}
    tries = Counter[str]()
    while waiting or running:
        while waiting and len(running) < pool.workers:
            chain = waiting.popleft()
            running[pool.submit(chain)] = chain
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            for unit, outcome in zip(running.pop(future), future.result(), strict=True):
                tries[outcome.key] += outcome.state == "crashed"
                if outcome.state != "crashed":
                    yield outcome
                elif tries[outcome.key] < _TRIES:
                    waiting.append([unit])
                else:
                    yield outcome._replace(reason=f"{outcome.reason} ({_TRIES} times)")


def _chains(units: Sequence[Unit], count: int) -> Iterator[Sequence[Unit]]:
    """Yield runs of neighbours in one environment, each a `count`-th of what is left.

    Guided self-scheduling: Polychronopoulos and Kuck, IEEE Transactions on Computers 36(12), 1987.
    """
    for _, group in groupby(units, lambda unit: unit.identity):
        left = list(group)
        while left:
            size = math.ceil(len(left) / count)
            yield left[:size]
            left = left[size:]


def parse_share(text: str) -> tuple[int, int]:
    """Return the number and the count of `3/48`."""
    number, separator, count = text.partition("/")
    if separator and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise RecipeError(f"--shard {text!r} is no share; give NUMBER/COUNT, such as 3/48 from 1/48 on")


def name_voices(specs: tuple[str, ...]) -> dict[str, str]:
    """Return a short name for each spec: its last part, with a number where several have it."""
    names: dict[str, str] = {}
    for spec in specs:
        short = _PLAIN.sub("-", Path(spec).stem).strip("-.") or "voice"
        name, number = short, 1
        while name in names.values():
            number += 1
            name = f"{short}-{number}"
        names[spec] = name
    return names


def _by_environment(plan: OpenPlan) -> list[tuple[Environment, list[str]]]:
    groups: dict[str, tuple[Environment, list[str]]] = {}
    for spec in plan.voices:
        environment = plan.environment_of(spec)
        groups.setdefault(environment.model_dump_json(), (environment, []))[1].append(spec)
    return list(groups.values())
