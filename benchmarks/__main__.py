"""Command line of the benchmark: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestants import PEERS
from benchmarks.plot import write_plot
from benchmarks.run import Choice, bench
from benchmarks.sentences import Lengths
from benchmarks.table import print_tables
from benchmarks.timing import Plan
from benchmarks.voices import VOICES, usual_voices
from tts_compress.artifact import write_text_atomically
from tts_compress.errors import TTSCompressError
from tts_compress.recipes.family import schemes_of
from tts_compress.recipes.schemes import Quality
from tts_compress.terminal import progress_bars, show, show_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOOD, _SCHEME_FAILED, _BAD_USE, _INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and return 0; 1 if one of our schemes failed, 2 for usage or bad input."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except TTSCompressError as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return _BAD_USE
    except KeyboardInterrupt:
        print("bench: interrupted; files made so far are kept, run it again", file=sys.stderr)
        return _INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    with progress_bars() as progress:
        found = bench(_choice(options), output / "work", progress)
    document = found.to_dict()
    write_text_atomically(output / "bench.json", json.dumps(document, indent=2) + "\n")
    pictures = write_plot(found, output / "bench")
    if options.json:
        show_json(document)
    else:
        print_tables(found)
        show("written: " + ", ".join(str(path) for path in (output / "bench.json", *pictures)))
    ours = [c for voice in found.voices for c in voice.contestants if c.kind == "scheme"]
    return _SCHEME_FAILED if any(c.error for c in ours) else _GOOD


def _choice(options: argparse.Namespace) -> Choice:
    quick: bool = options.quick
    rounds, warm_ups = (5, 1) if quick else (8, 2)
    plan = Plan(
        threads=tuple(options.threads or ((1,) if quick else (1, 2))),
        rounds=options.rounds or rounds,
        warm_ups=warm_ups,
    )
    return Choice(
        voices=tuple(options.voices or (("medium",) if quick else usual_voices())),
        schemes=None if options.schemes is None else tuple(options.schemes),
        train=options.train,
        peers=tuple(PEERS if options.peers is None else options.peers),
        lengths=Lengths(
            seconds=tuple(options.seconds or ((5.0,) if quick else (1.0, 5.0))),
            tokens=tuple(options.tokens or ((20,) if quick else (20, 100))),
        ),
        plan=plan,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time FP32, stock onnxruntime quantization and our schemes, in turns. Without "
        "options it takes less than ten minutes on two cores.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="one voice and length, 1 thread, 5 rounds")
    add("--voices", nargs="+", choices=VOICES, help="(medium demo)")
    qualities = {f"int8@{quality}" for quality in Quality}
    schemes = sorted({*schemes_of("piper"), *schemes_of("contract"), *qualities})
    add("--schemes", nargs="*", choices=schemes, metavar="SCHEME", help=_any(schemes))
    add("--train", action="store_true", help="also time schemes that train, for many minutes each")
    add("--peers", nargs="*", choices=PEERS, metavar="PEER", help=_any(PEERS))
    add("--threads", nargs="+", type=_count, help="of each run (1 2)")
    add("--seconds", nargs="+", type=_seconds, help="of each sentence of Piper's (1 5)")
    add("--tokens", nargs="+", type=_count, help="of each sentence of other voices (20 100)")
    add("--rounds", type=_count, help="timed runs of each (8)")
    add("--output", type=Path, default=Path("out/bench"), help="folder (%(default)s)")
    add("--json", action="store_true", help="print bench.json in the place of tables")
    return parser


def _any(names: Sequence[str]) -> str:
    return f"any of {', '.join(names)}; none where no name follows (all)"


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 60.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length from 0.2 to 60 seconds")
    return value


if __name__ == "__main__":
    sys.exit(main())
