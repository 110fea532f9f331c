"""Command line: ``cd examples && python -m pocket_voice STEP --work FOLDER``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def main() -> None:
    """Run one step of the recipe."""
    parser = argparse.ArgumentParser(prog="pocket_voice", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--work", type=Path, required=True, help="folder of all working data")
    trained = argparse.ArgumentParser(add_help=False)
    trained.add_argument("--device", default="cpu", help="such as cuda (%(default)s)")
    trained.add_argument("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    trained.add_argument("--rate", type=float, default=2e-3, help="highest rate (%(default)s)")
    steps = parser.add_subparsers(dest="step", required=True)
    speech = steps.add_parser("speech", parents=[common], help="let the demo voice speak")
    speech.add_argument("--count", type=int, default=4060, help="sentences (%(default)s)")
    codec = steps.add_parser("codec", parents=[common, trained], help="train the codec")
    codec.add_argument("--steps", type=int, default=4500)
    codec.add_argument("--batch", type=int, default=8)
    steps.add_parser("latents", parents=[common], help="read the speech with the codec")
    language = steps.add_parser(
        "language", parents=[common, trained], help="train the language model; write WORK/voice"
    )
    language.add_argument("--steps", type=int, default=5000)
    language.add_argument("--batch", type=int, default=24)
    suite = steps.add_parser("suite", parents=[common], help="write WORK/suite.toml, the judge's")
    suite.add_argument("--count", type=int, default=60, help="held-out sentences (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(getattr(args, "threads", 1))
    if args.step == "speech":
        from .speech import make_speech

        make_speech(args.work, args.count)
    elif args.step == "codec":
        from .codec import train_codec

        train_codec(args.work, args.steps, args.device, args.batch, args.rate)
    elif args.step == "latents":
        from .codec import make_latents

        make_latents(args.work)
    elif args.step == "language":
        from .language import train_language

        train_language(args.work, args.steps, args.device, args.batch, args.rate)
    else:
        from .speech import write_suite

        write_suite(args.work, args.count)


if __name__ == "__main__":
    main()
