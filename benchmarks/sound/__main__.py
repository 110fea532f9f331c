"""Command line: `python -m benchmarks.sound`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sound.report import ALARMS, Plan, analyse, write_report
from benchmarks.sound.values import DISTORTION, read_values
from tts_compress.environment import describe_environment
from tts_compress.errors import TTSCompressError
from tts_compress.terminal import progress_bars, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 is false alarms of `distortion` out of their limits, 2 is bad input."""
    options = _parser().parse_args(arguments)
    plan = Plan(texts=tuple(options.texts), alarms=options.comparisons)
    try:
        with progress_bars() as progress:
            if options.measure:
                # Speaking needs more packages than the tables do.
                from benchmarks.sound.measure import measure
                from benchmarks.sound.plant import NAMES

                measure(NAMES, options.suite, _machine(), options.values, progress)
            values = read_values(options.values)
            names = [DISTORTION, *values.reference]
            found = {}
            for place, name in enumerate(names):
                progress.advance("simulate", place, len(names))
                found[name] = analyse(values, name, plan)
        command = f"python -m benchmarks.sound --comparisons {plan.alarms}"
        write_report(found, values, command, options.report)
        show(f"written: {options.report}")
    except TTSCompressError as error:
        print(f"prove: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    shares = [share for kind in found[DISTORTION].alarms.values() for share in kind.values()]
    return 0 if all(ALARMS[0] <= share <= ALARMS[1] for share in shares) else 1


def _machine() -> str:
    facts = describe_environment()
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return f"{facts['processor']['model']}, one thread, Python {facts['python']}, {packages}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sound", description=__doc__)
    add = parser.add_argument
    folder = Path("eval/reports")
    add("--values", type=Path, default=folder / "sound-values.json", metavar="JSON")
    add("--report", type=Path, default=folder / "sound.md", metavar="MD")
    add("--texts", type=int, nargs="+", default=[24, 100, 200], help="(24 100 200)")
    add("--comparisons", type=int, default=1000, help="without damage (%(default)s)")
    add(
        "--measure",
        action="store_true",
        help="first measure candidates that --values lacks, for an hour or so; needs `listen`",
    )
    add("--suite", default="en-quick", help="to measure on (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
