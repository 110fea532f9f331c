"""`tts-compress export`: write a torch system's ONNX graphs."""

from argparse import ArgumentParser, Namespace

from tts_compress.cli.arguments import Output, explain, path
from tts_compress.errors import ModelError


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "export f5-tts:DIR --output out/f5-onnx --feeds en",
        "export parler-tts:DIR --output out/dac-onnx",
    )
    parser.add_argument("model", help="'f5-tts:…' or 'parler-tts:…', not compressed")
    parser.add_argument("--output", type=path, required=True, metavar="DIR", help="new directory")
    parser.add_argument(
        "--feeds",
        metavar="SET",
        help="also record what the graphs are given for the first 8 texts of a calibration set, "
        "for `quantize onnx:GRAPH --calibration GRAPH.npz`",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.models import load
    from tts_compress.models.base import TorchModel
    from tts_compress.recipes.recipe import read_calibration_set

    model = load(options.model)
    if not isinstance(model, TorchModel):
        raise ModelError(f"'{options.model}' is an ONNX graph already; export takes torch systems")
    from tts_compress.export import export, record_feeds

    texts = read_calibration_set(options.feeds).texts[:8] if options.feeds else ()
    files = export(model, options.output, force=options.force)
    if texts:
        files += record_feeds(model, texts, options.output)
    names = [str(path) for path in files]
    return Output({"files": names}, [f"written: {name}" for name in names])
