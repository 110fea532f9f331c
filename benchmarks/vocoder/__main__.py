"""`python -m benchmarks.vocoder`: the order of FP32, our INT8 and stock INT8 in sound and words."""

import os
import sys
from argparse import Namespace
from pathlib import Path

import torch

from benchmarks.clips import ASSETS, read_clips, read_sentences
from benchmarks.command import Add, command
from benchmarks.hifigan import find_published
from benchmarks.report import print_report
from benchmarks.vocoder.contestants import CONTESTANTS, FP32, NAIVE, OURS, speak
from benchmarks.vocoder.judge import document, holds, judge, markdown
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.store import Store
from tts_compress.folders import make_directory
from tts_compress.terminal import progress_bars


def _options(add: Add) -> None:
    add("--assets", type=Path, default=ASSETS, metavar="DIR")
    others = [name for name in CONTESTANTS if name not in {FP32, OURS, NAIVE}]
    add("--others", nargs="*", choices=others, default=others, metavar="CONTESTANT")
    add("--clips", type=int, default=32, help="judged (%(default)s)")
    add("--sentences", type=int, default=200, help="whose words are counted (%(default)s)")
    add("--recognizer", default="moonshine", metavar="NAME[:MODEL]", help="(%(default)s)")
    add("--jobs", type=int, default=os.cpu_count(), help="analyses at a time (%(default)s)")
    kept = "of finished pieces, which are not made again (%(default)s)"
    add("--output", type=Path, default=Path("out/bench-vocoder"), metavar="DIR", help=kept)
    stem = Path("eval/reports/vocoder")
    add("--report", type=Path, default=stem, metavar="STEM", help="of .json and .md (%(default)s)")


@command("benchmarks.vocoder", _options)
def main(options: Namespace) -> int:
    """Judge a vocoder in FP32, our INT8 and stock INT8 by sound and words."""
    published = find_published(options.assets)
    if published is None:
        return 0
    torch.set_num_threads(1)
    make_directory(options.output)
    clips = read_clips(options.assets, options.clips)
    sentences = read_sentences(options.sentences)
    needed = {FP32, OURS, NAIVE, *options.others}
    chosen = [name for name in CONTESTANTS if name in needed]
    with progress_bars() as progress:
        spoken = speak(published, clips, sentences, chosen, options.output, progress)
        judged = judge(
            spoken.files,
            clips,
            sentences,
            options.recognizer,
            Store(options.output),
            EvaluationOptions(jobs=options.jobs, progress=progress),
        )
    ran = (
        f"python -m benchmarks.vocoder --clips {len(clips)} --sentences {len(sentences)} "
        f"--recognizer {options.recognizer} --others {' '.join(options.others)}"
    )
    result = (judged, clips, spoken.speed, ran)
    print_report(options.report, document(*result), markdown(*result))
    return 0 if holds(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
