"""`python -m benchmarks.web`: a voice in FP32 and INT8 in other runtimes, played and timed."""

import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from benchmarks.command import Add, command
from benchmarks.report import render
from benchmarks.web.plan import write_plan
from benchmarks.web.players import PLAYERS, play, what_is_missing
from tts_compress.environment import describe_processor
from tts_compress.terminal import human_bytes, show


def _options(add: Add) -> None:
    add("voice", nargs="?", default="demo", help="a Piper voice (demo)")
    add("--rounds", type=int, default=15, help="timed runs, in turns (15)")


@command("benchmarks.web", _options, label="bench-web")
def main(options: Namespace) -> None:
    """Play and time a voice in FP32 and INT8 in other runtimes."""
    missing = {player: what_is_missing(player) for player in PLAYERS}
    show(*(f"{player} is left out: {reason}" for player, reason in missing.items() if reason))
    with tempfile.TemporaryDirectory() as folder:
        plan = write_plan(options.voice, Path(folder), rounds=options.rounds)
        runtimes = [play(player, plan) for player, reason in missing.items() if not reason]
        values = {"plan": plan, "runtimes": runtimes, "processor": describe_processor().model}
        template, filters = Path(__file__).with_name("report.md"), {"human": human_bytes}
        print("\n".join(render(template, values | {"voice": options.voice}, filters)))


if __name__ == "__main__":
    sys.exit(main())
