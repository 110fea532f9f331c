"""The efficiency of a sweep on many workers: the real schedule on a Ray cluster that sleeps.

`python -m benchmarks.scale` replaces each unit by a sleep of measured length.
"""

import json
import random
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from benchmarks.command import Add, command
from benchmarks.report import write_json
from tts_compress.errors import TTSCompressError
from tts_compress.evaluation.suite import read_suite
from tts_compress.progress import Progress
from tts_compress.sweep.plan import (
    Identity,
    Kind,
    Opened,
    OpenPlan,
    PlannedScheme,
    Settings,
    Unit,
    units_of,
)
from tts_compress.sweep.results import Results, open_results
from tts_compress.sweep.run import Outcome, RayPool, Task, run_units
from tts_compress.terminal import progress_bars, show

_LENGTHS: dict[Kind, float] = {
    "compress": 15.0,
    "reference": 20.0,
    "candidate": 12.0,
    "time": 15.0,
    "report": 15.0,
}
"""Mean seconds of each unit of a sweep of the demo voice on `en-quick` in four shards; printed by
`python -m benchmarks.scale --measured OUT` from the log of such a sweep."""

_SCHEMES = ("int8", "int8-static", "int8-weight-only", "fp16", "int8-dynamic", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a simulated sweep, and of its cluster."""

    voices: int
    schemes: int
    shards: int
    nodes: int
    processors: int
    """Processors of each node."""

    pace: float
    """Seconds of sleep for a second of work: below 1, overheads weigh more than they would."""


@dataclass(frozen=True, slots=True)
class SleepingProcess:
    """Sleeps as long as a unit takes, and notes it where results are."""

    output: str
    lengths: dict[Kind, float]
    pace: float

    def run(self, unit: Unit, _: Identity) -> Outcome:
        """Sleep."""
        time.sleep(length_of(unit, self.lengths) * self.pace)
        open_results(self.output).files.write(f"units/{unit.key}.zip", b"")
        return Outcome(unit.key, "done")

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Efficiency of one simulated sweep."""

    units: int
    wall_s: float
    busy_s: float
    """Sleep of all units, each as often as it has processors."""

    efficiency: float
    """Share of the cluster's processor time that was reserved for a running unit."""


def length_of(unit: Unit, lengths: dict[Kind, float]) -> float:
    """Return the seconds of a unit: around the mean of its kind, the same in every run.

    Voices differ: a quarter more or less, normally distributed.
    """
    chance = random.Random(unit.key)  # noqa: S311  no secret
    return lengths[unit.kind] * max(0.2, chance.gauss(1.0, 0.25))


def make_tasks(shape: Shape, output: str) -> tuple[OpenPlan, list[Task]]:
    """Return the units of as many made-up voices."""
    plan = OpenPlan(
        voices=("demo",),
        schemes=tuple(PlannedScheme(name=name, scheme=name) for name in _SCHEMES[: shape.schemes]),
        output=output,
        suite=read_suite("en-quick"),
        calibration=None,
        gates=(),
        shards=shape.shards,
        unit_hours=1.0,
        settings=Settings(),
        environments={},
    )
    identity = Identity(code="", packages={}, recognizer="", measures={})
    tasks: dict[str, Task] = {}
    for number in range(shape.voices):
        name = f"voice-{number}"
        voice = Opened(spec=name, name=name, family="piper", fingerprint=name)
        for scheme in plan.schemes:
            units = units_of(plan, voice, scheme, identity)
            tasks |= {unit.key: Task(unit, identity) for unit in units}
    return plan, [*tasks.values()]


def simulate(shape: Shape, lengths: dict[Kind, float], progress: Progress) -> Measured:
    """Run a sweep of sleeps on a cluster of this machine."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(shape.nodes):
            cluster.add_node(num_cpus=shape.processors, include_dashboard=False)
        ray.init(address=cluster.address, log_to_driver=False)
        with TemporaryDirectory() as output:
            plan, tasks = make_tasks(shape, output)
            sleeping = partial(SleepingProcess, output, lengths, shape.pace)
            begun = time.monotonic()
            lost = run_units(tasks, (), partial(RayPool, plan, None, sleeping), progress)
            wall = time.monotonic() - begun
            done = len(list((Path(output) / "units").iterdir()))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert done == len(tasks), f"{len(tasks) - done} units were lost: {lost}"
    busy = busy_seconds((task.unit for task in tasks), lengths, shape)
    total = shape.nodes * shape.processors * wall
    return Measured(units=len(tasks), wall_s=wall, busy_s=busy, efficiency=busy / total)


def busy_seconds(units: Iterable[Unit], lengths: dict[Kind, float], shape: Shape) -> float:
    """Return the sleep of all units, each as often as it reserves processors."""
    return sum(
        length_of(unit, lengths) * shape.pace * (shape.processors if unit.kind == "time" else 1)
        for unit in units
    )


def measured_lengths(results: Results) -> dict[Kind, float]:
    """Return the mean seconds of each kind of unit in a sweep's log."""
    seconds: dict[str, list[float]] = {}
    for executions in results.log(results.keys()).values():
        for one in executions:
            if "seconds" in one:
                seconds.setdefault(one["unit"].split()[0], []).append(one["seconds"])
    kinds: tuple[Kind, ...] = get_args(Kind)
    if missing := [kind for kind in kinds if kind not in seconds]:
        raise TTSCompressError(f"the log has no unit of kind {missing[0]!r}; give a finished sweep")
    return {kind: sum(seconds[kind]) / len(seconds[kind]) for kind in kinds}


def _options(add: Add) -> None:
    add("--voices", type=int, default=200)
    add("--schemes", type=int, default=4)
    add("--shards", type=int, default=4, help="of the suite (%(default)s)")
    add("--workers", type=int, default=16, help="of all nodes (%(default)s)")
    add("--nodes", type=int, default=4, help="of the cluster (%(default)s)")
    add("--pace", type=float, default=0.05, help="of the sleeps (%(default)s)")
    add("--measured", metavar="OUT", help="a sweep whose units' lengths count")
    add("--output", type=Path, metavar="JSON")


@command("benchmarks.scale", _options, label="scale")
def main(options: Namespace) -> int:
    """Time a sweep of sleeping units by the real schedule on a Ray cluster."""
    lengths = _LENGTHS
    if options.measured:
        lengths = measured_lengths(open_results(options.measured))
    shape = Shape(
        voices=options.voices,
        schemes=options.schemes,
        shards=options.shards,
        nodes=options.nodes,
        processors=options.workers // options.nodes,
        pace=options.pace,
    )
    with progress_bars() as progress:
        measured = simulate(shape, lengths, progress)
    document = {"shape": asdict(shape), "lengths_s": lengths, **asdict(measured)}
    show(json.dumps(document, indent=2))
    if options.output:
        write_json(options.output, document)
    return 0 if measured.efficiency >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
