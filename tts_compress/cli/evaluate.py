"""`tts-compress evaluate`: compare a compressed model with its reference."""

import os
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from tts_compress.cli.arguments import MODEL, Output, add_checkout, explain, path
from tts_compress.errors import ArtifactError, EvaluationError


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    from tts_compress.evaluation.recognizers import recognizer_names

    explain(
        parser,
        "evaluate demo out/demo-int8 --output out/report",
        "evaluate voice.onnx out/voice-int8 --suite en-full --output out/report --blame",
        "evaluate voice.onnx out/voice-int8 --recognizer whisper:small --output out/report",
        "evaluate --plan 0.5",
    )
    parser.add_argument("reference", nargs="?", help=f"the FP32 one, {MODEL}")
    parser.add_argument("candidate", nargs="?", help="the compressed one, likewise")
    parser.add_argument("--suite", default="en-quick", help="a suite's name or TOML (%(default)s)")
    parser.add_argument(
        "--recognizer",
        metavar="NAME[:MODEL]",
        help=f"{', '.join(sorted(recognizer_names()))}; the model is a hub's name or a folder "
        "(the suite's)",
    )
    parser.add_argument(
        "--any-language",
        action="store_true",
        help="also where a model states another language than the suite's",
    )
    parser.add_argument("--output", type=path, metavar="DIR", help="for the report")
    parser.add_argument("--threads", type=int, default=1, help="of each model (%(default)s)")
    parser.add_argument("--jobs", type=int, help="recognizers at a time (all processors)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="noise seeds of each text, in place of the suite's"
    )
    parser.add_argument(
        "--speaker", metavar="NAME|ID", help="of all texts, for a voice with several (in turn)"
    )
    parser.add_argument(
        "--mos",
        metavar="FILE.onnx[@HZ]",
        help="a network of yours that scores samples [1, T] at a rate, such as UTMOS",
    )
    parser.add_argument(
        "--wav", action="store_true", help="keep the audio also as WAV files beside the report"
    )
    parser.add_argument(
        "--blame",
        action="store_true",
        help="also find the component that did the damage, one compressed component at a time",
    )
    parser.add_argument(
        "--work",
        type=path,
        metavar="DIR",
        help="keep all audio and transcripts there, for evaluations to come (in a cache, until "
        "the evaluation is done)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing report")
    parser.add_argument(
        "--plan",
        type=float,
        metavar="POINTS",
        help="only print how many texts and seeds find a difference of that many points of WER"
        "; by the spread of the evaluation in --output, where that is given",
    )
    add_checkout(parser)


def run(options: Namespace) -> Output:
    """Run the command."""
    if options.plan is not None:
        return _plan(options.plan, options.output)
    if options.candidate is None or options.output is None:
        raise EvaluationError("give REFERENCE, CANDIDATE and --output DIR, or --plan POINTS")
    from tts_compress.terminal import progress_bars

    if (options.output / "report.json").exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a report; use --force to replace it, or another output"
        )
    with progress_bars() as progress:
        progress.advance("open", 0, 3)  # before the imports, which take half a second
        from tts_compress.evaluation import EvaluationOptions, evaluate
        from tts_compress.report import summary_table
        from tts_compress.report.blame import blame_sentence

        chosen = EvaluationOptions(
            threads=options.threads,
            jobs=options.jobs if options.jobs is not None else os.cpu_count() or 1,
            seeds=tuple(options.seeds) if options.seeds else None,
            recognizer=options.recognizer,
            any_language=options.any_language,
            speaker=options.speaker,
            mos=options.mos,
            keep_wav=options.wav,
            blame=options.blame,
            work=options.work,
            progress=progress,
        )
        result = evaluate(
            options.reference,
            options.candidate,
            suite=options.suite,
            output=options.output,
            options=chosen,
        )
    return Output(
        result.model_dump(mode="json", exclude={"utterances"}),
        [
            summary_table(result),
            *([] if result.blame is None else [blame_sentence(result.blame)]),
            f"report: {options.output / 'report.html'}",
        ],
    )


def _plan(points: float, directory: Path | None) -> Output:
    """Print what a claim needs."""
    from tts_compress.evaluation.plan import plan_evaluation
    from tts_compress.report.plan import plan_lines

    found = plan_evaluation(points, directory)
    return Output(asdict(found) | {"suite": found.suite}, plan_lines(found))
