"""Command line: ``cd examples && python -m pocket_voice STEP --work FOLDER``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .codec import make_latents, train_codec
from .language import train_language
from .speech import make_speech


def main() -> None:
    """Run one step of the recipe."""
    parser = argparse.ArgumentParser(prog="pocket_voice", description=__doc__)
    parser.add_argument("step", choices=("speech", "codec", "latents", "language"))
    parser.add_argument("--work", type=Path, required=True, help="folder of all working data")
    parser.add_argument("--count", type=int, default=4060, help="sentences to speak (%(default)s)")
    parser.add_argument("--steps", type=int, default=5000, help="of training (%(default)s)")
    parser.add_argument("--batch", type=int, default=24, help="of a step; the codec takes a third")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest rate (%(default)s)")
    parser.add_argument("--device", default="cpu", help="such as cuda (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.step == "speech":
        make_speech(args.work, args.count)
    elif args.step == "codec":
        train_codec(args.work, args.steps, args.device, args.batch // 3, args.rate)
    elif args.step == "latents":
        make_latents(args.work)
    else:
        train_language(args.work, args.steps, args.device, args.batch, args.rate)


if __name__ == "__main__":
    main()
