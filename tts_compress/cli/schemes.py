"""`tts-compress schemes`: list what can be done to which family."""

from argparse import ArgumentParser, Namespace

from tts_compress.cli.arguments import Output, explain
from tts_compress.families import family_names


def add_arguments(parser: ArgumentParser) -> None:
    """Add no arguments."""
    explain(parser, "schemes", "schemes --json")


def run(_: Namespace) -> Output:
    """Run the command."""
    from tts_compress.recipes.family import schemes_of
    from tts_compress.recipes.schemes import SCHEMES

    schemes = {family: schemes_of(family) for family in family_names()}
    rows, lines = [], []
    for scheme in SCHEMES:
        families = [family for family in schemes if scheme.name in schemes[family]]
        rows.append({"scheme": scheme.name, "summary": scheme.summary, "families": families})
        shown = f" ({', '.join(families)})" if families else ""
        lines.append(f"{scheme.name:<18}{scheme.summary}{shown}")
    return Output({"schemes": rows}, lines)
