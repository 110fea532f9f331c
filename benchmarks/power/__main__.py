"""Command line: `python -m benchmarks.power`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.power.measure import measure
from benchmarks.power.report import Found, simulate, write_report
from tts_compress.artifact import write_text_atomically
from tts_compress.config import word_errors_file
from tts_compress.errors import TTSCompressError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.plan import read_word_errors
from tts_compress.terminal import progress_bars, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 is an interval that raises too many or too few false alarms, 2 is bad input."""
    options = _parser().parse_args(arguments)
    try:
        with progress_bars() as progress:
            if options.measure:
                found = measure(
                    (options.measure[0], options.measure[1]),
                    (options.reference_seeds, options.candidate_seeds),
                    options.suite,
                    options.work,
                    EvaluationOptions(
                        recognizer=options.recognizer, jobs=options.jobs, progress=progress
                    ),
                )
                write_text_atomically(options.errors, found.model_dump_json() + "\n")
            data = read_word_errors(options.errors)
            result = simulate(
                data, options.texts, options.seeds, options.comparisons, progress=progress
            )
        show(*_lines(result))
        for path in write_report(result, data, _command(options), options.report):
            show(f"written: {path}")
    except TTSCompressError as error:
        print(f"prove: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0 if all(row.holds for row in result) else 1


def _lines(result: Sequence[Found]) -> list[str]:
    return [
        f"{row.texts} texts, {row.seeds} seeds: false alarms "
        + ", ".join(
            f"{name} {share:.1%}" for name, share in row.alarms.items() if share is not None
        )
        + ("" if row.holds else " (not within the limits)")
        for row in result
    ]


def _command(options: argparse.Namespace) -> str:
    words = ["python -m benchmarks.power", f"--comparisons {options.comparisons}"]
    words.append(f"--texts {' '.join(map(str, options.texts))}")
    words.append(f"--seeds {' '.join(map(str, options.seeds))}")
    return " ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.power", description=__doc__)
    add = parser.add_argument
    add("--errors", type=Path, default=word_errors_file(), metavar="JSON", help="measured errors")
    add("--texts", type=int, nargs="+", default=[24, 50, 100, 200], help="(24 50 100 200)")
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="of each text, as far as measured (1 2 3)",
    )
    add("--comparisons", type=int, default=1000, help="drawn for each share (%(default)s)")
    add(
        "--report",
        type=Path,
        default=Path("eval/reports/power"),
        metavar="STEM",
        help="of .json and .md (%(default)s)",
    )
    add(
        "--measure",
        nargs=2,
        metavar=("REFERENCE", "CANDIDATE"),
        help="first measure the errors of these models, for an hour or so, into --errors",
    )
    add("--suite", default="en-full", help="to measure on (%(default)s)")
    add("--reference-seeds", type=int, nargs="+", default=[0, 1, 2, 1000], metavar="SEED")
    add("--candidate-seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    add("--work", type=Path, default=Path("out/power"), metavar="DIR", help="of finished pieces")
    add("--recognizer", metavar="NAME[:MODEL]", help="of the words (the suite's)")
    add("--jobs", type=int, default=2, help="recognizers at a time (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
