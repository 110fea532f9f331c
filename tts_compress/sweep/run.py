"""A sweep from its plan to its document, phase by phase."""

import math
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tts_compress.errors import RecipeError, TTSCompressError, reason
from tts_compress.progress import Progress
from tts_compress.sweep.executors import Executor, Outcome, Pool, Task, UnitProcess
from tts_compress.sweep.plan import (
    PHASES,
    Environment,
    Failure,
    Identity,
    Opened,
    OpenPlan,
    read_plan,
    share_of,
    units_of,
)
from tts_compress.sweep.report import SweepReport, merge_reports, write_sweep
from tts_compress.sweep.results import Results, open_results

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
    tasks: Sequence[Task]
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
    tasks: dict[str, Task] = {}
    failures = []
    for spec in plan.voices:
        identity, about = described[spec]
        if "reason" in about:
            failures.append(Failure(voice=names[spec], reason=about["reason"]))
            continue
        voice = Opened(spec=spec, name=names[spec], **about)
        for scheme in plan.schemes:
            try:
                units = units_of(plan, voice, scheme, identity)
            except TTSCompressError as error:
                why = reason(error)
                failures.append(Failure(voice=voice.name, scheme=scheme.name, reason=why))
                continue
            tasks |= {unit.key: Task(unit, identity) for unit in units}
    return Planned(plan=plan, tasks=[*tasks.values()], failures=failures)


def run_sweep(planned: Planned, executor: Executor, progress: Progress) -> SweepReport:
    """Do everything that is not done yet, and write the document and its page."""
    _run(planned, planned.tasks, executor, progress)
    return merge(planned, progress)


def run_share(
    planned: Planned, share: tuple[int, int], executor: Executor, progress: Progress
) -> tuple[int, int]:
    """Do a share of the units; return how many of how many are done then."""
    units = [task.unit for task in planned.tasks]
    mine = {unit.key for unit in share_of(units, *share)}
    _run(planned, [task for task in planned.tasks if task.unit.key in mine], executor, progress)
    return len(mine & planned.results().keys()), len(mine)


def merge_shares(planned: Planned, executor: Executor, progress: Progress) -> SweepReport:
    """Make the reports of all pairs whose units are done, and the document."""
    reports = [task for task in planned.tasks if task.unit.kind == "report"]
    _run(planned, reports, executor, progress)
    return merge(planned, progress)


def merge(planned: Planned, progress: Progress) -> SweepReport:
    """Write the document of what is done, and its page; return the document."""
    results = planned.results()
    units = [task.unit for task in planned.tasks]
    report = merge_reports(planned.plan, results, units, planned.failures, progress)
    write_sweep(report, results)
    return report


def _run(planned: Planned, tasks: Sequence[Task], executor: Executor, progress: Progress) -> None:
    results = planned.results()
    lost = run_units(tasks, results.keys(), executor, progress)
    titles = {task.unit.key: task.unit.title for task in tasks}
    for key, why in lost.items():
        results.note(key, {"unit": titles[key], "failed": why})


def run_units(
    tasks: Sequence[Task],
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
        wanted = [task for task in tasks if task.unit.kind in kinds]
        left = [task for task in wanted if task.unit.key not in done]
        if not left:
            continue
        ready = [task for task in left if done.issuperset(task.unit.needs)]
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


def _run_phase(tasks: Sequence[Task], pool: Pool) -> Iterator[Outcome]:
    """Yield the last outcome of each unit. One whose worker died is tried again, alone."""
    waiting = deque(_chains(tasks, _CHAINS * pool.workers))
    running: dict[Future[list[Outcome]], Sequence[Task]] = {}
    tries = Counter[str]()
    while waiting or running:
        while waiting and len(running) < pool.workers:
            chain = waiting.popleft()
            running[pool.submit(chain)] = chain
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            for task, outcome in zip(running.pop(future), future.result(), strict=True):
                tries[outcome.key] += outcome.state == "crashed"
                if outcome.state != "crashed":
                    yield outcome
                elif tries[outcome.key] < _TRIES:
                    waiting.append([task])
                else:
                    yield outcome._replace(reason=f"{outcome.reason} ({_TRIES} times)")


def _chains(tasks: Sequence[Task], count: int) -> Iterator[Sequence[Task]]:
    """Yield runs of neighbours in one environment, each a `count`-th of what is left.

    Guided self-scheduling: Polychronopoulos and Kuck, IEEE Transactions on Computers 36(12), 1987.
    """
    for _, group in groupby(tasks, lambda task: task.identity):
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
