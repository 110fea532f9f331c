"""The efficiency of a sweep on many workers: the real schedule on a Ray cluster that sleeps."""

import json
import random
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, get_args

from benchmarks.command import Add, command
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
from tts_compress.sweep.run import Outcome, RayPool, run_units
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

_SCHEMES = ("int8", "int8-static", "int8-weight-only", "fp16")
_SHARDS, _NODES, _PROCESSORS = 4, 4, 4
"""Shards of the suite, nodes of the cluster, processors of a node."""


@dataclass(frozen=True, slots=True)
class SleepingProcess:
    """Sleeps as long as a unit takes, and notes it where results are."""

    output: str
    lengths: dict[Kind, float]

    def run(self, unit: Unit) -> Outcome:
        """Sleep."""
        time.sleep(_length_of(unit, self.lengths))
        open_results(self.output).files.write(f"units/{unit.key}.zip", b"")
        return Outcome(unit.key, "done")

    def close(self) -> None:
        """Do nothing."""


def _length_of(unit: Unit, lengths: dict[Kind, float]) -> float:
    """Return the seconds of a unit, the same in every run."""
    chance = random.Random(unit.key)  # noqa: S311  no secret
    return lengths[unit.kind] * max(0.2, chance.gauss(1.0, 0.25))


def _make_units(voices: int, output: str) -> tuple[OpenPlan, list[Unit]]:
    plan = OpenPlan(
        voices=("demo",),
        schemes=tuple(PlannedScheme(name=name, scheme=name) for name in _SCHEMES),
        output=output,
        suite=read_suite("en-quick"),
        calibration=None,
        gates=(),
        shards=_SHARDS,
        unit_hours=1.0,
        settings=Settings(),
        environments={},
    )
    identity = Identity(code="", packages={}, recognizer="", measures={})
    units: dict[str, Unit] = {}
    for number in range(voices):
        name = f"voice-{number}"
        voice = Opened(spec=name, name=name, family="piper", fingerprint=name)
        for scheme in plan.schemes:
            units |= {unit.key: unit for unit in units_of(plan, voice, scheme, identity)}
    return plan, [*units.values()]


def _simulate(voices: int, lengths: dict[Kind, float], progress: Progress) -> dict[str, Any]:
    """Run a sweep of sleeps; return its size and efficiency."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(_NODES):
            cluster.add_node(num_cpus=_PROCESSORS, include_dashboard=False)
        ray.init(address=cluster.address, log_to_driver=False)
        with TemporaryDirectory() as output:
            plan, units = _make_units(voices, output)
            sleeping = partial(SleepingProcess, output, lengths)
            begun = time.monotonic()
            lost = run_units(units, (), partial(RayPool, plan, None, sleeping), progress)
            wall = time.monotonic() - begun
            done = len(list((Path(output) / "units").iterdir()))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert done == len(units), f"{len(units) - done} units were lost: {lost}"
    # A timing unit reserves all processors of its node.
    busy = sum(
        _length_of(unit, lengths) * (_PROCESSORS if unit.kind == "time" else 1) for unit in units
    )
    efficiency = busy / (_NODES * _PROCESSORS * wall)
    return {"units": done, "wall_s": wall, "busy_s": busy, "efficiency": efficiency}


def _measured_lengths(results: Results) -> dict[Kind, float]:
    seconds: dict[str, list[float]] = {}
    for executions in results.log(results.keys()).values():
        for execution in executions:
            if "seconds" in execution:
                kind = execution["unit"].split()[0]
                seconds.setdefault(kind, []).append(execution["seconds"])
    kinds: tuple[Kind, ...] = get_args(Kind)
    if missing := [kind for kind in kinds if kind not in seconds]:
        raise TTSCompressError(f"the log has no unit of kind {missing[0]!r}; give a finished sweep")
    return {kind: mean(seconds[kind]) for kind in kinds}


def _options(add: Add) -> None:
    add("--voices", type=int, default=200)
    pace = "seconds of sleep for one of work (%(default)s): overheads weigh more than they would"
    add("--pace", type=float, default=0.05, help=pace)
    add("--measured", metavar="OUT", help="a sweep whose units' lengths count")


@command("benchmarks.scale", _options, label="scale")
def main(options: Namespace) -> int:
    """Time a sweep of sleeping units by the real schedule on a Ray cluster."""
    lengths = _LENGTHS
    if options.measured:
        lengths = _measured_lengths(open_results(options.measured))
    slept: dict[Kind, float] = {kind: options.pace * length for kind, length in lengths.items()}
    with progress_bars() as progress:
        measured = _simulate(options.voices, slept, progress)
    show(json.dumps({"lengths_s": lengths, "pace": options.pace} | measured, indent=2))
    return 0 if measured["efficiency"] >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
