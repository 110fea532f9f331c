"""Command line: ``python -m benchmarks.qat``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.qat.clips import ASSETS, mean_distance, read_clips
from benchmarks.qat.contestants import CONTESTANTS, Work, make, reference
from benchmarks.qat.report import Found, write_report
from benchmarks.turns import take_turns
from tts_compress.errors import TTSCompressError
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.trainer import read_log
from tts_compress.terminal import progress_bars, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.qat.contestants import Contestant, Vocoder

_RATES = {8: 1e-5, 4: 5e-5}
"""Learning rates by the bits of weights: rounding to eight bits leaves errors so small that larger
steps make them worse."""

_ROUNDS = 20
"""Rounds in which the vocoders are timed against each other."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 is usage or bad input. Without assets there is nothing to do."""
    options = _parser().parse_args(arguments)
    vocoder = options.assets / "hifigan-v2-ljspeech"
    if not vocoder.is_dir():
        show(f"skipped: '{options.assets}' holds no hifigan-v2-ljspeech; name it by --assets")
        return 0
    try:
        found = _measure(options, vocoder)
        show(*(f"{row.name:<22}{row.distance_db:.3f} dB" for row in found))
        paths = write_report(found, options.clips, _command(options), options.report)
        show(*(f"written: {path}" for path in paths))
    except TTSCompressError as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _measure(options: argparse.Namespace, vocoder: Path) -> list[Found]:
    options.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)  # of teachers, too
    clips = read_clips(options.assets / "speech-ljspeech32" / "wavs", options.clips)
    work = Work(
        graph=vocoder / "generator_v2.fp32.onnx",
        checkpoint=vocoder / "generator_v2",
        clips=clips,
        feeds=clips.write_feeds(options.output / "feeds.npz"),
        options={bits: _training(options, rate) for bits, rate in _RATES.items()},
    )
    references = clips.sounds(reference(work.graph))
    found = []
    vocoders: dict[str, Vocoder] = {}
    for contestant in CONTESTANTS:
        if contestant.name not in options.contestants:
            continue
        folder = options.output / contestant.name
        with progress_bars() as progress:
            made = make(contestant, work, TrainingRun(folder=folder, progress=progress))
        vocoders[contestant.name] = made
        curve = [e for e in read_log(folder) if e["event"] == "held-out"]
        found.append(
            Found(
                name=contestant.name,
                bits=contestant.bits,
                distance_db=mean_distance(references, clips.sounds(made)),
                options=work.options[contestant.bits].identity() if contestant.untrained else None,
                curve=tuple((event["step"], event["loss"]) for event in curve),
                time_ratio=_time_ratio(vocoders, contestant, clips.held_out[0]),
            )
        )
        show(f"{contestant.name}: {found[-1].distance_db:.3f} dB")
    return found


def _time_ratio(vocoders: dict[str, Vocoder], contestant: Contestant, mel: Any) -> float | None:
    """Return the time of a trained vocoder over that of the same one without training."""
    if contestant.untrained not in vocoders:
        return None
    torch.set_num_threads(1)
    pair = {name: vocoders[name] for name in (contestant.untrained, contestant.name)}
    runs = {name: partial(vocoder, mel) for name, vocoder in pair.items()}
    before, after = take_turns(runs, rounds=_ROUNDS).values()
    return min(after) / min(before)


def _command(options: argparse.Namespace) -> str:
    given = {"contestants": " ".join(options.contestants), "steps": options.steps}
    given |= {"batch-size": options.batch_size, "clips": options.clips, "threads": options.threads}
    words = [f"--{name} {value}" for name, value in given.items()]
    if not options.learned_ranges:
        words.append("--no-learned-ranges")
    return " ".join(["python -m benchmarks.qat", *words])


def _training(options: argparse.Namespace, rate: float) -> TrainingOptions:
    return TrainingOptions(
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=rate,
        held_out=16,
        held_out_every=max(options.steps // 8, 1),
        threads=options.threads,
        learned_ranges=options.learned_ranges,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.qat", description=__doc__)
    names = [contestant.name for contestant in CONTESTANTS]
    parser.add_argument("--assets", type=Path, default=ASSETS, metavar="DIR")
    parser.add_argument("--contestants", nargs="+", choices=names, default=names)
    parser.add_argument("--clips", type=int, default=16, help="of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument(
        "--learned-ranges",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="train the ranges of activations, too (%(default)s)",
    )
    parser.add_argument("--output", type=Path, default=Path("out/bench-qat"), metavar="DIR")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("eval/reports/qat"),
        metavar="STEM",
        help="of .json, .md and .svg (%(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
