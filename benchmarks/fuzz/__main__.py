"""Command line: `python -m benchmarks.fuzz`."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.fuzz.run import MOST_BYTES, Outcome, fuzz, kind_of, run_case


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases; 1 is a failure among them."""
    options = _parser().parse_args(arguments)
    if options.case is not None:
        return _reproduce(options.case, options.kind)
    seeds = range(options.seed, options.seed + options.cases)
    kinds = [options.kind] * len(seeds) if options.kind else ()
    outcome = fuzz(seeds, kinds, jobs=options.jobs)
    print("\n".join(_lines(outcome)))
    return 1 if outcome.failures or outcome.peak_bytes > MOST_BYTES else 0


def _reproduce(seed: int, kind: str | None) -> int:
    """Run one case here, with its traceback and its files kept on failure."""
    kind = kind or kind_of(seed)
    folder = mkdtemp(prefix="fuzz-")
    print(f"case {seed} ({kind}) in {folder}")
    refused = run_case(seed, kind, Path(folder))
    print("refused" if refused else "accepted")
    return 0


def _lines(outcome: Outcome) -> list[str]:
    """Return the results for people."""
    lines = [
        f"{kind:12} {count:6} cases, {outcome.refused[kind]:6} refused"
        for kind, count in sorted(outcome.cases.items())
    ]
    for problem, count in Counter(_alike(f.problem) for f in outcome.failures).most_common():
        found = [f for f in outcome.failures if _alike(f.problem) == problem]
        shown = f"--case {found[0].seed} --kind {found[0].kind}"
        lines.append(f"FAIL {count:5} × {found[0].kind}: {found[0].problem} ({shown})")
    problems = [failure.problem for failure in outcome.failures]
    hangs = problems.count("hang")
    signals = sum(problem.startswith("ended with") for problem in problems)
    lines.append(
        f"{outcome.cases.total()} cases: {len(problems) - hangs - signals} tracebacks, {hangs} "
        f"hangs, {signals} signals; peak memory {outcome.peak_bytes / 1e9:.2f} GB; "
        f"{outcome.seconds:.0f} s"
    )
    return lines


def _alike(problem: str) -> str:
    """Return what failures of one cause share."""
    return problem.split(": ", maxsplit=1)[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (%(default)s)")
    parser.add_argument("--kind", help="of all cases; by default they are mixed")
    parser.add_argument("--case", type=int, metavar="SEED", help="run one case here, unguarded")
    return parser


if __name__ == "__main__":
    sys.exit(main())
