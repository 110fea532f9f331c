"""`tts-compress search`: the smallest or fastest form of a voice within a rise of word errors."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GATE_FAILED, GOOD, MODEL, Output, explain, path
from tts_compress.cli.sensitivity import add_groups
from tts_compress.errors import ArtifactError

if TYPE_CHECKING:
    from tts_compress.progress import Progress
    from tts_compress.search.search import SearchOptions


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "search demo --max-wer-rise 0.5 --objective size --output out/smallest",
        "quantize demo --recipe out/smallest/recipe.toml --output out/again",
        "search voice.onnx --max-wer-rise 3 --relative --objective latency --output out/f",
        failed="no voice is within the bound",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument(
        "--max-wer-rise", type=float, default=0.5, metavar="POINTS", help="bound on the rise of "
        "the word error rate, in percentage points (%(default)s)"
    )  # fmt: skip
    parser.add_argument(
        "--relative", action="store_true", help="the bound is in per cent of the reference's rate"
    )
    parser.add_argument(
        "--strict", action="store_true", help="accept only what the whole 95 %% interval shows; by "
        "default the rise itself has to be within the bound"
    )  # fmt: skip
    parser.add_argument(
        "--objective",
        choices=("size", "latency", "memory"),
        default="size",
        help="what to make small (%(default)s)",
    )
    parser.add_argument(
        "--output", type=path, required=True, metavar="DIR", help="for recipe, voice and page; a "
        "run into it that was interrupted goes on"
    )  # fmt: skip
    parser.add_argument(
        "--damage", type=float, default=1.0, metavar="SHARE", help="damage that is admitted before "
        "words are judged, in shares of scheme int8's (%(default)s)"
    )  # fmt: skip
    parser.add_argument("--trials", type=int, default=48, help="choices to measure (%(default)s)")
    parser.add_argument(
        "--judge", type=int, default=3, help="candidates to evaluate at most (%(default)s)"
    )
    parser.add_argument("--suite", default="en-quick", help="of the words (%(default)s)")
    parser.add_argument(
        "--recognizer", metavar="NAME[:MODEL]", help="as of `evaluate` (the suite's)"
    )
    parser.add_argument(
        "--storage", metavar="URL", help="a database that several searches share, such as "
        "sqlite:///study.db (a file in the output)"
    )  # fmt: skip
    parser.add_argument(
        "--formats", nargs="+", metavar="FORMAT", default=[], help="as of `sensitivity`"
    )
    add_groups(parser)
    parser.add_argument("--texts", type=int, default=8, help="short texts to measure (%(default)s)")
    parser.add_argument(
        "--calibration", metavar="SET", help="a calibration set's name or TOML (the recipe's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of noise and search (%(default)s)")
    parser.add_argument("--force", action="store_true", help="replace an existing result")


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.terminal import progress_bars

    if (options.output / "search.json").exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a result; use --force to replace it (what was measured is "
            "used again), or another output"
        )
    with progress_bars() as progress:
        progress.advance("prepare", 0, 3)
        from tts_compress.search.search import search
        from tts_compress.search.writing import write_result

        found = search(options.model, options.output, _options(options, progress))
    page = write_result(found, options.output)
    lines = [found.statement, f"page: {page}"]
    if found.chosen is not None:
        lines.append(f"recipe: {options.output / 'recipe.toml'}")
        lines.append(f"voice: {options.output / 'voice'}")
    code = GATE_FAILED if found.chosen is None else GOOD
    return Output(found.model_dump(mode="json", exclude={"points"}), lines, code)


def _options(options: Namespace, progress: Progress) -> SearchOptions:
    from tts_compress.search.cost import Objective
    from tts_compress.search.search import SearchOptions
    from tts_compress.search.sensitivity import SensitivityOptions

    return SearchOptions(
        objective=Objective(options.objective),
        max_wer_rise=options.max_wer_rise,
        relative=options.relative,
        strict=options.strict,
        damage=options.damage,
        trials=options.trials,
        judged=options.judge,
        suite=options.suite,
        recognizer=options.recognizer,
        storage=options.storage,
        sensitivity=SensitivityOptions(
            formats=tuple(options.formats),
            groups=tuple(options.groups),
            each_layer=options.layers,
            texts=options.texts,
            calibration=options.calibration,
            seed=options.seed,
            progress=progress,
        ),
        progress=progress,
    )
