"""`tts-compress check`: tell which runtimes play a model."""

from argparse import ArgumentParser, Namespace

from tts_compress.cli.arguments import GATE_FAILED, GOOD, MODEL, Output, explain


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "check out/voice-int8 --runtime web --runtime openvino",
        "check out/voice-int8 --runtime onnxruntime:1.20",
        failed="a runtime does not play it",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument(
        "--runtime",
        action="append",
        metavar="NAME[:RELEASE]",
        help="onnxruntime (default), web, sherpa-onnx, openvino, qnn, coreml, your own .toml file, "
        "or all of them (all); the newest known release where none is given; may be given again",
    )


def run(options: Namespace) -> Output:
    """Run the command: exit code 1 where a runtime does not play the model."""
    from tts_compress.inspection import (
        check_runtime,
        runtime_names,
        verdict_document,
        verdict_lines,
    )
    from tts_compress.models import open_model

    model = open_model(options.model)
    wanted = options.runtime or ["onnxruntime"]
    names = [n for name in wanted for n in (runtime_names() if name == "all" else [name])]
    verdicts = [check_runtime(model, name) for name in dict.fromkeys(names)]
    lines = [line for verdict in verdicts for line in verdict_lines(verdict)]
    document = {"model": model.spec, "runtimes": [verdict_document(v) for v in verdicts]}
    return Output(document, lines, GOOD if all(v.plays for v in verdicts) else GATE_FAILED)
