"""`tts-compress export`: write a torch system's ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GOOD, add_json
from tts_compress.errors import ModelError

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("export", help="write a torch system's ONNX graphs")
    parser.add_argument("model", help="'f5-tts:…' or 'parler-tts:…', not compressed")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument(
        "--feeds",
        metavar="SET",
        help="also record what the graphs are given for the first 8 texts of a calibration set, "
        "for `quantize onnx:GRAPH --calibration GRAPH.npz`",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.export import export, record_feeds
    from tts_compress.models import load
    from tts_compress.models.base import TorchModel
    from tts_compress.recipes.recipe import read_calibration_set
    from tts_compress.terminal import show, show_json

    model = load(options.model)
    if not isinstance(model, TorchModel):
        raise ModelError(f"'{options.model}' is an ONNX graph already; export takes torch systems")
    texts = read_calibration_set(options.feeds).texts[:8] if options.feeds else ()
    files = export(model, options.output, force=options.force)
    if texts:
        files += record_feeds(model, texts, options.output)
    if options.json:
        show_json({"files": [str(path) for path in files]})
    else:
        show(*(f"written: {path}" for path in files))
    return GOOD
