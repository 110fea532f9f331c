"""Command line: `python -m benchmarks.vocoder`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.qat.clips import ASSETS
from benchmarks.vocoder.clips import read_clips, read_sentences
from benchmarks.vocoder.contestants import CONTESTANTS, Given
from benchmarks.vocoder.judge import judge
from benchmarks.vocoder.report import Found, holds, write_report
from benchmarks.vocoder.speak import FP32, NAIVE, OURS, speak
from tts_compress.errors import TTSCompressError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.store import Store
from tts_compress.folders import make_directory
from tts_compress.terminal import progress_bars, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 is an order that is not shown, 2 is bad input. Without assets nothing is done."""
    options = _parser().parse_args(arguments)
    vocoder = options.assets / "hifigan-v2-ljspeech"
    if not vocoder.is_dir():
        show(f"skipped: '{options.assets}' holds no hifigan-v2-ljspeech; name it by --assets")
        return 0
    try:
        found = _measure(options, vocoder)
        show(*(f"written: {path}" for path in write_report(found, options.report)))
    except TTSCompressError as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0 if holds(found.judged) else 1


def _measure(options: argparse.Namespace, vocoder: Path) -> Found:
    torch.set_num_threads(1)
    make_directory(options.output)
    given = Given(
        graph=vocoder / "generator_v2.fp32.onnx",
        checkpoint=vocoder / "generator_v2",
        folder=options.output,
    )
    clips = read_clips(options.assets, options.clips)
    sentences = read_sentences(options.sentences)
    needed = {FP32, OURS, NAIVE, *options.others}
    chosen = [contestant for contestant in CONTESTANTS if contestant.name in needed]
    with progress_bars() as progress:
        spoken = speak(given, clips, sentences, chosen, progress)
        judged = judge(
            spoken.files,
            clips,
            sentences,
            options.recognizer,
            Store(options.output),
            EvaluationOptions(jobs=options.jobs, progress=progress),
        )
    return Found(
        judged=judged,
        clips=[clip.name for clip in clips],
        speed=spoken.speed,
        command=f"python -m benchmarks.vocoder --clips {len(clips)} --sentences {len(sentences)} "
        f"--recognizer {options.recognizer} --others {' '.join(options.others)}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.vocoder", description=__doc__)
    add = parser.add_argument
    add("--assets", type=Path, default=ASSETS, metavar="DIR")
    others = [c.name for c in CONTESTANTS if c.name not in {FP32, OURS, NAIVE}]
    add("--others", nargs="*", choices=others, default=others, metavar="CONTESTANT")
    add("--clips", type=int, default=32, help="judged (%(default)s)")
    add("--sentences", type=int, default=200, help="whose words are counted (%(default)s)")
    add("--recognizer", default="moonshine", metavar="NAME[:MODEL]", help="(%(default)s)")
    add("--jobs", type=int, default=os.cpu_count(), help="analyses at a time (%(default)s)")
    add(
        "--output",
        type=Path,
        default=Path("out/bench-vocoder"),
        metavar="DIR",
        help="of finished pieces, which are not made again (%(default)s)",
    )
    add(
        "--report",
        type=Path,
        default=Path("eval/reports/vocoder"),
        metavar="STEM",
        help="of .json and .md (%(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
