"""`python -m benchmarks.fuzz`: its options, and the results for people."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.command import Add, command
from benchmarks.fuzz.run import MOST_BYTES, Outcome, fuzz, kind_of, run_case


def _lines(outcome: Outcome) -> Iterator[str]:
    for kind, count in sorted(outcome.cases.items()):
        yield f"{kind:12} {count:6} cases, {outcome.refused[kind]:6} refused"
    # Failures of one cause begin alike.
    causes = [failure.problem.partition(": ")[0] for failure in outcome.failures]
    for cause, count in Counter(causes).most_common():
        first = outcome.failures[causes.index(cause)]
        shown = f"--case {first.seed} --kind {first.kind}"
        yield f"FAIL {count:5} × {first.kind}: {first.problem} ({shown})"
    hangs = causes.count("hang")
    signals = sum(cause.startswith("ended with") for cause in causes)
    yield (
        f"{outcome.cases.total()} cases: {len(causes) - hangs - signals} tracebacks, {hangs} "
        f"hangs, {signals} signals; peak memory {outcome.peak_bytes / 1e9:.2f} GB"
    )


def _options(add: Add) -> None:
    add("--cases", type=int, default=10_000, help="number of cases (%(default)s)")
    add("--seed", type=int, default=0, help="of the first case (%(default)s)")
    add("--jobs", type=int, default=2, help="processes at a time (%(default)s)")
    add("--kind", help="of all cases; by default they are mixed")
    add("--case", type=int, metavar="SEED", help="run one case here, unguarded")


@command("benchmarks.fuzz", _options, label="fuzz")
def main(options: Namespace) -> int:
    """Read mutated files and texts, each in a watched process."""
    if options.case is not None:
        kind, folder = options.kind or kind_of(options.case), mkdtemp(prefix="fuzz-")
        print(f"case {options.case} ({kind}) in {folder}")
        # With its traceback, and its files kept, on failure.
        print("refused" if run_case(options.case, kind, Path(folder)) else "accepted")
        return 0
    seeds = range(options.seed, options.seed + options.cases)
    kinds = [options.kind] * len(seeds) if options.kind else ()
    outcome = fuzz(seeds, kinds, jobs=options.jobs)
    print("\n".join(_lines(outcome)))
    return 1 if outcome.failures or outcome.peak_bytes > MOST_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
