"""List what can be done to which family.

Examples:
    schemes
    schemes --json
"""

from argparse import Namespace

from tts_compress.cli.command import Command, Output
from tts_compress.families import family_names

COMMAND = Command(__doc__)


def run(_: Namespace) -> Output:
    """Print every scheme and the families that have it."""
    from tts_compress.recipes.family import schemes_of
    from tts_compress.recipes.formats import SCHEMES

    schemes = {family: schemes_of(family) for family in family_names()}
    rows, lines = [], []
    for scheme in SCHEMES:
        families = [family for family in schemes if scheme.name in schemes[family]]
        rows.append({"scheme": scheme.name, "summary": scheme.summary, "families": families})
        shown = f" ({', '.join(families)})" if families else ""
        lines.append(f"{scheme.name:<18}{scheme.summary}{shown}")
    return Output({"schemes": rows}, lines)
