"""List the compression schemes of each family of models.

Examples:
    schemes
    schemes --json
"""

import sys
from argparse import Namespace
from ctypes import CDLL
from importlib.util import find_spec

from tts_compress.cli.command import Command, Output
from tts_compress.families import family_names

COMMAND = Command(__doc__)


def run(_: Namespace) -> Output:
    """Print every scheme and the families that have it."""
    from tts_compress.recipes.formats import SCHEMES
    from tts_compress.recipes.recipe import schemes_of

    schemes = {family: schemes_of(family) for family in family_names()}
    rows, lines = [], []
    for scheme in SCHEMES:
        here = scheme.name != "fp8" or _has_float8()
        families = [family for family in schemes if here and scheme.name in schemes[family]]
        rows.append({"scheme": scheme.name, "summary": scheme.summary, "families": families})
        of = ", ".join(families) if here else "no such GPU here"
        shown = f" ({of})" if of else ""
        lines.append(f"{scheme.name:<18}{scheme.summary}{shown}")
    return Output({"schemes": rows}, lines)


def _has_float8() -> bool:
    """Return True if 8-bit floats can be multiplied here."""
    if find_spec("torch") is None or not _has_driver():
        return False
    from tts_compress.torch.devices import has_float8

    return has_float8()


def _has_driver() -> bool:
    """Return True if NVIDIA's driver is here; importing torch to ask takes seconds."""
    try:
        CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
