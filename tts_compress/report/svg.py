"""Matplotlib figures as inline SVG that follows the page: its colours, its font, its width."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tts_compress.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CANDIDATE",
    "FLOOR",
    "GRID",
    "INK",
    "MUTED",
    "PAPER",
    "REFERENCE",
    "drawing",
    "to_inline_svg",
]

# Stand-ins that matplotlib accepts; in the SVG each becomes a variable of the page's style sheet,
# so that a plot turns dark together with the page. None is black: black is left out of the SVG.
INK = "#010101"
MUTED = "#010102"
GRID = "#010103"
REFERENCE = "#010104"
CANDIDATE = "#010105"
FLOOR = "#010106"
PAPER = "#010107"

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    REFERENCE: "--reference",
    CANDIDATE: "--candidate",
    FLOOR: "--floor",
    PAPER: "--paper",
}

_SETTINGS = {
    "svg.fonttype": "none",  # text stays text: searchable, read aloud, a tenth of the bytes
    "font.size": 12.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
}

# What the HTML parser does not need, what is global to the page, what would be there twice, and the
# date of the drawing.
_DROPPED = (
    re.compile(r"<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*|<!--.*?-->\s*", re.DOTALL),
    re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL),
    re.compile(r"<defs>\s*<style.*?</style>\s*</defs>\s*", re.DOTALL),
    re.compile(r' (?:xmlns(?::xlink)?|version)="[^"]*"'),
    re.compile(r'(?<=<g) id="[^"]*"'),
    re.compile(r"font-size: 12.5px; (?=font-family)"),
    re.compile(r"font-family: [^;\"]*;? ?"),
    re.compile(r' transform="rotate\(-0 [^"]*\)"'),
)


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with our settings inside the block, whatever the user's matplotlib is set to.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "evaluate") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def to_inline_svg(figure: Any, label: str) -> str:
    """Return a figure as an `<svg>` element without references to anything outside the page.

    Args:
        figure: A matplotlib figure drawn inside `drawing()`.
        label: The text alternative; plain words, no markup, another one for each figure.
    """
    import matplotlib

    buffer = io.StringIO()
    # Identifiers come of the content and the salt: the same in every run, other in every figure.
    with matplotlib.rc_context({"svg.hashsalt": label}):
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    for pattern in _DROPPED:
        svg = pattern.sub("", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    svg = re.sub(r'<svg width="[^"]*" height="[^"]*"', "<svg", svg, count=1)
    return svg.strip().replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
