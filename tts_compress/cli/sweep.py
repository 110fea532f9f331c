"""Compress and evaluate many voices by many schemes, on many machines.

A sweep that was interrupted, run again, goes on where it ended: what is done is never done twice.
One broken voice does not stop the others. The exit code is 2 also where something failed or is
still to be done.

Examples:
    sweep plan.toml --workers 8      # on this machine
    sweep plan.toml --executor ray   # on a Ray cluster (RAY_ADDRESS)
    sweep plan.toml --shard 3/48     # one of 48 shares, on any scheduler
    sweep merge plan.toml            # the page, when all shares are done

plan.toml:
  version = 1
  voices = ["demo", "voices/*.onnx"]
  schemes = ["int8", "fp16", "mine.toml"]   # names, and recipes of your own
  suite = "en-quick"
  gates = ["default"]
  shards = 4                                # parts of the suite, per model
  output = "out"                            # or a URL that fsspec knows: s3://bucket/sweep
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.command import BAD_USE, GATE_FAILED, GOOD, Command, Option, Output
from tts_compress.errors import RecipeError
from tts_compress.plain import masked

if TYPE_CHECKING:
    from tts_compress.progress import Progress
    from tts_compress.sweep.report import SweepReport
    from tts_compress.sweep.run import Executor, Planned

COMMAND = Command(
    __doc__,
    Option(
        "plan",
        "the plan; 'merge' writes the page when all shares are done",
        nargs="+",
        metavar="[merge] PLAN.toml",
    ),
    Option("--executor NAME", "what does it: processes of this machine, or ray", default="local"),
    Option("--workers N", "units at a time (all processors)", type=int),
    Option("--shard K/N", "do only this share of the units"),
    Option("--dry-run", "only count the units"),
    failed="a gate failed",
    resumes=True,
    usage="%(prog)s [merge] PLAN.toml [--executor NAME] [--workers N] [--shard K/N] "
    "[--dry-run] [--json]",
)


def run(options: Namespace) -> Output:
    """Do the units of the plan that are left, or the share asked for, and print the results."""
    from tts_compress.sweep.run import EXECUTORS, parse_share, plan_sweep, run_sweep
    from tts_compress.terminal import progress_bars

    *action, plan = options.plan
    if action not in ([], ["merge"]):
        raise RecipeError(f"give one plan, or 'merge' and a plan; not {' '.join(options.plan)!r}")
    if options.workers is not None and options.workers < 1:
        raise RecipeError(f"--workers is {options.workers}; a positive number is needed")
    if options.executor not in EXECUTORS:
        raise RecipeError(f"no executor {options.executor!r}; available: {', '.join(EXECUTORS)}")
    share = None if options.shard is None else parse_share(options.shard)
    if share is not None and action:
        raise RecipeError("'merge' takes no --shard; run it once, when all shares are done")
    with progress_bars() as progress:
        planned = plan_sweep(Path(plan), progress)
        if options.dry_run:
            return _count(planned)
        executor = EXECUTORS[options.executor](planned.plan, options.workers)
        if share is not None:
            return _show_share(planned, share, executor, progress)
        report = run_sweep(planned, executor, progress, merging=bool(action))
    return _show(report, planned.plan.output)


def _count(planned: Planned) -> Output:
    """Print the units by kind, and how many are done."""
    done = planned.results().keys()
    counts: dict[str, dict[str, int]] = {}
    for unit in planned.units:
        count = counts.setdefault(unit.kind, {"units": 0, "done": 0})
        count["units"] += 1
        count["done"] += unit.key in done
    failures = [failure.model_dump() for failure in planned.failures]
    lines = [f"{kind}: {of['done']} of {of['units']} done" for kind, of in counts.items()]
    lines += [
        f"cannot be done: {failure['voice']} {failure['scheme']}: {failure['reason']}"
        for failure in failures
    ]
    return Output({"units": counts, "failures": failures}, lines)


def _show_share(
    planned: Planned, share: tuple[int, int], executor: Executor, progress: Progress
) -> Output:
    from tts_compress.sweep.run import run_share

    done, total = run_share(planned, share, executor, progress)
    line = f"share {share[0]} of {share[1]}: {done} of {total} units done"
    document = {"share": share, "done": done, "units": total}
    return Output(document, [line], GOOD if done == total else BAD_USE)


def _show(report: SweepReport, output: str) -> Output:
    from tts_compress.evaluation.formatting import points

    lines = [
        f"{entry.voice} {entry.scheme}: {entry.size_ratio:.2f}x smaller, {entry.speed:.2f}x as "
        f"fast, WER {points(entry.wer_delta)}"
        f"{'' if all(entry.gates.values()) else '; a gate failed'}"
        for entry in report.entries
    ]
    lines += [
        f"FAILED {failure.voice} {failure.scheme}: {failure.reason}" for failure in report.failures
    ]
    if report.left:
        lines.append(f"{report.left} of {report.units} units are still to be done")
    lines.append(f"page: {masked(output)}/index.html")
    code = BAD_USE if not report.is_complete else GOOD if report.passed else GATE_FAILED
    return Output(report.model_dump(mode="json"), lines, code)
