"""`python -m benchmarks.web` prints how a voice plays in other runtimes."""

import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from rich.table import Table

from benchmarks.command import Add, command
from benchmarks.web.plan import REFERENCE, Plan, write_plan
from benchmarks.web.players import PLAYERS, Played, play, what_is_missing
from tts_compress.environment import describe_processor
from tts_compress.terminal import human_bytes, show


def _table() -> Table:
    table = Table("runtime", "voice", box=None, pad_edge=False)
    columns = ("file", "to onnxruntime here", "to FP32", "seconds of speech a second", "speed")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _add_rows(table: Table, plan: Plan, played: Played) -> None:
    for name in played.voices:
        table.add_row(
            f"{played.player} {played.version}",
            name,
            human_bytes((plan.folder / f"{name}.onnx").stat().st_size),
            f"{played.snr_db(name, plan.sounds[name]):.0f} dB",
            f"{played.snr_db(name, plan.sounds[REFERENCE]):.0f} dB",
            f"{played.rate(name, plan.sample_rate):.1f}",
            f"{played.speed_ratio(name):.2f}×",
        )


def _options(add: Add) -> None:
    add("voice", nargs="?", default="demo", help="a Piper voice (demo)")
    add("--rounds", type=int, default=15, help="timed runs, in turns (15)")
    add("--players", nargs="+", choices=PLAYERS, default=PLAYERS)


@command("benchmarks.web", _options, label="bench-web")
def main(options: Namespace) -> None:
    """Play and time a voice in FP32 and INT8 in other runtimes."""
    with tempfile.TemporaryDirectory() as folder:
        plan = write_plan(options.voice, Path(folder), rounds=options.rounds)
        table = _table()
        for player in options.players:
            if reason := what_is_missing(player):
                show(f"{player} is left out: {reason}")
                continue
            _add_rows(table, plan, play(player, plan))
        show(f"{options.voice} on {describe_processor().model}, one thread", table)


if __name__ == "__main__":
    sys.exit(main())
