"""`tts-compress inspect`: show a model's components and how it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.cli.arguments import ANY_MODEL, GOOD, add_checkout, add_json

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("inspect", help="show a model's components and how it was made")
    parser.add_argument("model", help=ANY_MODEL)
    add_checkout(parser)
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.inspection import inspect_model, inspection_tables
    from tts_compress.models import open_model
    from tts_compress.terminal import show, show_json

    found = inspect_model(open_model(options.model))
    if options.json:
        show_json(found)
    else:
        show(*inspection_tables(found))
    return GOOD
