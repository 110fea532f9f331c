"""Write a torch system's ONNX graphs, or an ONNX voice in stages or in fixed sizes.

Examples:
    export out/demo-int8 --stream --output out/demo-stream
    export out/kokoro-int8 --web --output out/kokoro-web
    export demo --fixed 64,128,256 --output out/demo-fixed
    export f5-tts:DIR --output out/f5-onnx --feeds en
    export gpt-sovits:tts_infer.yaml?text_lang=en --output out/sovits-onnx
    export parler-tts:DIR --output out/dac-onnx
"""

from argparse import Namespace
from pathlib import Path

from tts_compress.cli.command import Command, Option, Output, required_output, streaming
from tts_compress.errors import ModelError

COMMAND = Command(
    __doc__,
    Option(
        "model",
        "'f5-tts:…', 'gpt-sovits:…' or 'parler-tts:…', not compressed; with --stream, --web "
        "or --fixed any ONNX voice",
    ),
    required_output("--output DIR", "new directory"),
    Option(
        "--feeds SET",
        "also record what the graphs are given for the first 8 texts of a calibration set, "
        "for `quantize onnx:GRAPH --calibration GRAPH.npz`; of GPT-SoVITS the phonemes, as "
        "`calibration.toml`",
    ),
    (
        Option("--stream", "write an ONNX voice and, in `stream/`, its graph in stages"),
        Option("--web", "the same for examples/web; a voice that cannot stream is a single stage"),
        Option(
            "--fixed FRAMES",
            "write an ONNX voice and, in `fixed/`, graphs of fixed sizes for NPUs: 64,128,256",
        ),
    ),
    Option("--force", "replace what is there"),
)


def run(options: Namespace) -> Output:
    """Write the graphs, and recorded inputs where they are asked for."""
    from tts_compress.artifact import check_replaceable
    from tts_compress.models import load
    from tts_compress.models.base import TorchModel
    from tts_compress.recipes.recipe import read_calibration_set

    if options.feeds and (options.stream or options.web or options.fixed is not None):
        raise ModelError(
            "--feeds is of a system in torch; leave it out with --stream, --web or --fixed"
        )
    if not options.force:  # else what it replaces depends on the form
        check_replaceable(options.output, "", force=False)
    model = load(options.model)
    if options.stream or options.web:
        from tts_compress.export.stream import export_stream

        voice = streaming(model)
        export_stream(voice, options.output, whole=options.web, force=options.force)
        return _written(options.output)
    if options.fixed is not None:
        from tts_compress.export.fixed import export_fixed

        voice = streaming(model)
        export_fixed(voice, options.output, _sizes(options), force=options.force)
        return _written(options.output)
    if not isinstance(model, TorchModel):
        raise ModelError(
            f"'{options.model}' is an ONNX graph already; give --stream, --web or --fixed for a "
            "voice, or a system in torch"
        )
    from tts_compress.export import export

    texts = read_calibration_set(options.feeds).texts[:8] if options.feeds else ()
    export(model, options.output, texts=texts, force=options.force)
    return _written(options.output)


def _sizes(options: Namespace) -> list[int]:
    try:
        return [int(number) for number in options.fixed.split(",")]
    except ValueError as error:
        raise ModelError(f"--fixed is {options.fixed!r}; give numbers: 64,128,256") from error


def _written(folder: Path) -> Output:
    names = [str(path) for path in sorted(folder.rglob("*")) if path.is_file()]
    return Output({"files": names}, [f"written: {name}" for name in names])
