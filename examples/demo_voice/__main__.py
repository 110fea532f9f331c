"""Command line: ``cd examples && python -m demo_voice STEP --work FOLDER``."""

from __future__ import annotations

import argparse
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo_voice", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--work", type=Path, required=True, help="folder of all working data")
    speech = steps.add_parser("speech", parents=[common], help="let the teacher speak")
    speech.add_argument("metadata", type=Path, help="metadata.csv of LJSpeech")
    speech.add_argument("--count", type=int, default=6000)
    steps.add_parser("align", parents=[common], help="find the durations")
    train = steps.add_parser("train", parents=[common], help="train (resumes by itself)")
    train.add_argument("--steps", type=int, default=8000)
    train.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    train.add_argument("--start", type=Path, help="exported voice to go on from")
    train.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    train.add_argument("--max-noise", type=float, default=0.6, help="of the prior, in training")
    train.add_argument("--adversarial-from", type=float, default=0.5, help="fraction of steps")
    train.add_argument(
        "--focus-from", type=float, default=1.0, help="prior only from this fraction"
    )
    durations = steps.add_parser(
        "durations", parents=[common], help="train the duration predictor to its end"
    )
    durations.add_argument("--steps", type=int, default=2000)
    export = steps.add_parser("export", parents=[common], help="write the .onnx and its .json")
    export.add_argument("--output", type=Path, required=True, help="where demo.onnx goes")
    check = steps.add_parser("check", parents=[common], help="measure a voice")
    check.add_argument("models", type=Path, nargs="+", help=".onnx files (.json next to each)")
    check.add_argument("--seeds", type=int, default=2, help="renderings listened to")
    check.add_argument("--count", type=int, default=60, help="held-out sentences")
    return parser


def main() -> None:
    """Run one step of the recipe."""
    args = _parser().parse_args()
    if args.step == "speech":
        from .speech import make_speech

        make_speech(args.metadata, args.work, args.count)
    elif args.step == "align":
        from .align import align

        align(args.work)
    elif args.step == "train":
        from .train import Plan, train

        plan = Plan(
            steps=args.steps,
            workers=args.workers,
            max_noise=args.max_noise,
            adversarial_from=args.adversarial_from,
            focus_from=args.focus_from,
            start=args.start,
            peak_rate=args.rate,
        )
        train(args.work, plan)
    elif args.step == "durations":
        from .durations import train_durations

        train_durations(args.work, args.steps)
    elif args.step == "export":
        from .export import export

        export(args.work, args.output)
    elif args.step == "check":
        from .check import check

        check(args.work, args.models, args.count, args.seeds)


if __name__ == "__main__":
    main()
