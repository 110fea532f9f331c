"""Tell which runtimes play a model; exits 1 where one does not.

Examples:
    check out/voice-int8 --runtime web --runtime openvino
    check out/voice-int8 --runtime onnxruntime:1.20
"""

from argparse import Namespace
from dataclasses import asdict

from tts_compress.cli.command import GATE_FAILED, GOOD, MODEL, Command, Option, Output

COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    Option(
        "--runtime NAME[:RELEASE]",
        "onnxruntime (default), web, sherpa-onnx, openvino, qnn, coreml, rknn, litert, "
        "executorch, your own .toml file, or all of them (all); the newest known release where "
        "none is given; may be given again",
        action="append",
    ),
    failed="a runtime does not play it",
)


def run(options: Namespace) -> Output:
    """Print what each runtime does with the model; exit code 1 where one does not play it."""
    from tts_compress.inspection.check import check_runtime, runtime_names, verdict_lines
    from tts_compress.models import open_model

    model = open_model(options.model)
    wanted = options.runtime or ["onnxruntime"]
    names = [n for name in wanted for n in (runtime_names() if name == "all" else [name])]
    verdicts = [check_runtime(model, name) for name in dict.fromkeys(names)]
    lines = [line for verdict in verdicts for line in verdict_lines(verdict)]
    document = {"model": model.spec, "runtimes": [asdict(v) for v in verdicts]}
    return Output(document, lines, GOOD if all(v.plays for v in verdicts) else GATE_FAILED)
