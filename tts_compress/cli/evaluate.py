"""Compare a compressed model with its reference.

Examples:
    evaluate demo out/demo-int8 --output out/report
    evaluate voice.onnx out/voice-int8 --suite en-full --output out/report --blame
    evaluate voice.onnx out/voice-int8 --recognizer whisper:small --output out/report
    evaluate --audio wavs/fp32 wavs/int8 --texts texts.tsv --output out/report
    evaluate demo out/demo-int8 --output out/report --listening-test
    evaluate --plan 0.5
"""

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from tts_compress.cli.command import (
    CHECKOUT,
    EXECUTION,
    MODEL,
    Command,
    Option,
    Output,
    check_unused,
    options_from,
    path,
)
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.recognizers import recognizer_names
from tts_compress.models.execution import Execution

COMMAND = Command(
    __doc__,
    Option("reference", f"the FP32 one, {MODEL}", nargs="?"),
    Option("candidate", "the compressed one, likewise", nargs="?"),
    Option("--suite SUITE", "a suite's name or TOML", default="en-quick"),
    Option(
        "--audio",
        "both are folders of WAV files that any program wrote, or of a folder for each seed; "
        "--suite then names language, recognizer and normaliser",
    ),
    Option(
        "--texts FILE",
        "with --audio: names and texts as TSV, JSON lines, TOML or a list of seed-tts-eval",
        type=path,
    ),
    Option(
        "--recognizer NAME[:MODEL]",
        f"{', '.join(sorted(recognizer_names()))}; the model is a hub's name or a folder "
        "(the suite's)",
    ),
    Option("--output DIR", "for the report", type=path),
    Option("--jobs JOBS", "recognizers at a time (all processors)", type=int),
    *Option.each_of(EvaluationOptions),
    *EXECUTION,
    Option("--force", "replace an existing report"),
    Option(
        "--plan POINTS",
        "only print how many texts and seeds find a difference of that many points of WER"
        "; by the spread of the evaluation in --output, where that is given",
        type=float,
    ),
    CHECKOUT,
    resumes=True,
)


def run(options: Namespace) -> Output:
    """Compare both models and write the report."""
    if options.plan is not None:
        return _plan(options.plan, options.output)
    if options.candidate is None or options.output is None:
        raise EvaluationError("give REFERENCE, CANDIDATE and --output DIR, or --plan POINTS")
    if options.audio != (options.texts is not None) or (options.port and not options.audio):
        raise EvaluationError(
            "give --texts FILE with --audio; --texts and --port are only for --audio"
        )
    from tts_compress.terminal import progress_bars

    check_unused(options, "report.json", "report")
    with progress_bars() as progress:
        progress.advance("open", 0, 3)  # before the imports, which take half a second
        from tts_compress.evaluation.blame import blame_sentence
        from tts_compress.evaluation.recordings import evaluate_audio
        from tts_compress.evaluation.run import evaluate
        from tts_compress.report import LISTENING_NAME, summary_table

        sides = (options.reference, options.candidate)
        execution = options_from(options, Execution)
        settings = options_from(options, EvaluationOptions, progress=progress, execution=execution)
        common = {"suite": options.suite, "output": options.output, "options": settings}
        if options.audio:
            result = evaluate_audio(*sides, options.texts, **common)
        else:
            result = evaluate(*sides, **common)
    return Output(
        result.model_dump(mode="json", exclude={"utterances"}),
        [
            summary_table(result),
            *([] if result.blame is None else [blame_sentence(result.blame)]),
            f"report: {options.output / 'report.html'}",
            *(
                []
                if result.listening is None
                else [f"for listeners: {options.output / LISTENING_NAME}"]
            ),
        ],
    )


def _plan(points: float, directory: Path | None) -> Output:
    """Print what a claim needs."""
    from tts_compress.evaluation.plan import plan_evaluation, plan_lines

    power = plan_evaluation(points, directory)
    return Output(asdict(power) | {"suite": power.suite}, plan_lines(power))
