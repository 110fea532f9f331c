"""`tts-compress schemes`: list what can be done to which family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.cli.arguments import GOOD, add_json

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("schemes", help="list what can be done to which family")
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.families import family_names
    from tts_compress.recipes.family import schemes_of
    from tts_compress.recipes.schemes import SCHEMES
    from tts_compress.terminal import show, show_json

    families = {name: schemes_of(name) for name in family_names()}
    rows: list[dict[str, Any]] = [
        {
            "scheme": scheme.name,
            "summary": scheme.summary,
            "families": [name for name, schemes in families.items() if scheme.name in schemes],
        }
        for scheme in SCHEMES
    ]
    if options.json:
        show_json({"schemes": rows})
        return GOOD
    for row in rows:
        show(f"{row['scheme']:<18}{row['summary']} ({', '.join(row['families'])})")
    return GOOD
