"""`tts-compress evaluate`: compare a compressed model with its reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GOOD, add_checkout, add_json
from tts_compress.errors import ArtifactError
from tts_compress.families import model_specs

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("evaluate", help="compare a compressed model with its reference")
    parser.add_argument("reference", help=f"the FP32 model: {model_specs()}")
    parser.add_argument("candidate", help="the compressed one, likewise")
    parser.add_argument("--suite", default="en-quick", help="a suite's name or TOML (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="for the report")
    parser.add_argument("--threads", type=int, default=1, help="of each model (%(default)s)")
    parser.add_argument("--jobs", type=int, help="recognizers at a time (all processors)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="noise seeds of each text, in place of the suite's"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing report")
    add_checkout(parser)
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.evaluation import EvaluationOptions, evaluate
    from tts_compress.report import summary_table
    from tts_compress.terminal import progress_bars, show, show_json

    if (options.output / "report.json").exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a report; use --force to replace it, or another output"
        )
    with progress_bars() as progress:
        chosen = EvaluationOptions(
            threads=options.threads,
            jobs=options.jobs if options.jobs is not None else os.cpu_count() or 1,
            seeds=tuple(options.seeds) if options.seeds else None,
            progress=progress,
        )
        result = evaluate(
            options.reference,
            options.candidate,
            suite=options.suite,
            output=options.output,
            options=chosen,
        )
    directory = result.write(options.output)
    if options.json:
        show_json(result.model_dump(mode="json", exclude={"utterances"}))
        return GOOD
    show(summary_table(result), f"report: {directory / 'report.html'}")
    return GOOD
