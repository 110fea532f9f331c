"""Command line: `python -m benchmarks.scale`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks.scale.simulate import Shape, describe, simulate
from tts_compress.artifact import write_text_atomically
from tts_compress.errors import TTSCompressError
from tts_compress.sweep.plan import Kind
from tts_compress.sweep.results import Results, open_results
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 is an efficiency below 90 per cent, 2 is bad input."""
    options = _parser().parse_args(arguments)
    try:
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
            found = simulate(shape, lengths, progress)
    except TTSCompressError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 2
    document = describe(shape, lengths, found)
    show(json.dumps(document, indent=2))
    if options.output:
        write_text_atomically(options.output, json.dumps(document, indent=2) + "\n")
    return 0 if found.efficiency >= 0.9 else 1


def measured_lengths(results: Results) -> dict[Kind, float]:
    """Return the mean seconds of each kind of unit in a sweep's log.

    Raises:
        TTSCompressError: A kind is missing.
    """
    seconds: dict[str, list[float]] = {}
    for executions in results.log(results.keys()).values():
        for one in executions:
            if "seconds" in one:
                seconds.setdefault(one["unit"].split()[0], []).append(one["seconds"])
    kinds: tuple[Kind, ...] = get_args(Kind)
    if missing := [kind for kind in kinds if kind not in seconds]:
        raise TTSCompressError(f"the log has no unit of kind {missing[0]!r}; give a finished sweep")
    return {kind: sum(seconds[kind]) / len(seconds[kind]) for kind in kinds}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--voices", type=int, default=200)
    parser.add_argument("--schemes", type=int, default=4)
    parser.add_argument("--shards", type=int, default=4, help="of the suite (%(default)s)")
    parser.add_argument("--workers", type=int, default=16, help="of all nodes (%(default)s)")
    parser.add_argument("--nodes", type=int, default=4, help="of the cluster (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.05, help="of the sleeps (%(default)s)")
    parser.add_argument("--measured", metavar="OUT", help="a sweep whose units' lengths count")
    parser.add_argument("--output", type=Path, metavar="JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
