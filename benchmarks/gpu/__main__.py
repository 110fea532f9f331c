"""Command line: ``python -m benchmarks.gpu``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.contestants import CONTESTANTS
from benchmarks.gpu.probe import CudaProbe
from benchmarks.gpu.report import describe_results, file_stem, write_markdown
from benchmarks.gpu.run import Choice, bench_network
from tts_compress.artifact import write_text_atomically
from tts_compress.errors import EvaluationError, MissingExtraError, TTSCompressError
from tts_compress.terminal import progress_bars, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.run import Result

_NETWORKS = ("dit", "parler-decoder")
_REPORTS = Path("eval/reports")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 is usage or bad input."""
    options = _parser().parse_args(arguments)
    first = next(iter(CONTESTANTS))
    names = options.contestants or CONTESTANTS
    chosen = [n for n in names if options.compiled or not CONTESTANTS[n].compiled]
    choice = Choice(
        contestants=tuple(dict.fromkeys([first, *chosen])),
        rounds=options.rounds,
        warm_ups=options.warm_ups,
        mode=options.mode,
    )
    try:
        probe = CudaProbe()
        results = _measure(options.networks, choice, probe)
    except TTSCompressError as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    document = describe_results(probe.describe(), choice, results)
    measured = [result.network for result in results]
    stem = options.output or _REPORTS / file_stem(document["device"]["name"], measured, _NETWORKS)
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = write_markdown(document, results)
    for path, content in (
        (stem.with_name(f"{stem.name}.json"), json.dumps(document, indent=2) + "\n"),
        (stem.with_name(f"{stem.name}.md"), text),
    ):
        write_text_atomically(path, content)
        show(f"written: {path}")
    print(text)
    return 0


def _measure(named: Sequence[str] | None, choice: Choice, probe: CudaProbe) -> list[Result]:
    results = []
    with progress_bars() as progress:
        for name in named or _NETWORKS:
            try:
                results.append(bench_network(name, choice, probe, progress.advance))
            except MissingExtraError as error:
                if named:
                    raise
                show(f"{name}: skipped: {error}")
    if not results:
        raise EvaluationError("no network's package is installed; install the extra f5 or parler")
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Time whole networks on an NVIDIA GPU: FP32, 16 bits and 8 bits, in turns.",
    )
    add = parser.add_argument
    add("--networks", nargs="+", choices=_NETWORKS, help="instead of all that are installed")
    add("--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help="instead of all")
    add("--eager", dest="compiled", action="store_false", help="leave out the compiled ones")
    add("--mode", default="default", help="of torch's compiler, such as reduce-overhead")
    add("--rounds", type=_positive, default=50, help="timed runs of each (%(default)s)")
    add("--warm-ups", type=_positive, default=10, help="runs before them (%(default)s)")
    add("--output", type=Path, help="files without their endings (eval/reports/gpu-<device>)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


if __name__ == "__main__":
    sys.exit(main())
