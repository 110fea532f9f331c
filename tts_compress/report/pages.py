"""Pages of templates, and their figures: what reports, searches and sweeps have in common."""

import base64
import hashlib
import io
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tts_compress.evaluation import formatting
from tts_compress.evaluation.listening import ListeningTest

_SHARED = Path(__file__).with_name("templates")

# Inches at 72 units each: 380 units wide, about the width of a phone, so that the text of the
# plots has its natural size there and in the three columns of a desktop.
_SIZE = (380 / 72, 270 / 72)

_NAMES = ("ink", "muted", "line", "reference", "candidate", "floor", "paper")
COLORS = {name: f"#01010{number}" for number, name in enumerate(_NAMES, start=1)}
"""Stand-ins that matplotlib accepts; in the SVG each becomes a variable of the page's style sheet,
so that a plot turns dark together with the page. None is black: black is left out of the SVG."""

_SETTINGS = {
    "svg.fonttype": "none",  # text stays text: searchable, read aloud, a tenth of the bytes
    "font.size": 12.5,
    "text.color": COLORS["ink"],
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), COLORS["line"]),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), COLORS["muted"]),
    "grid.color": COLORS["line"],
    "grid.linewidth": 0.8,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    "axes.axisbelow": True,
}

# Parts the HTML parser does not need, parts that are global to the page or would be there twice,
# and the date of the drawing.
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


class Plot(NamedTuple):
    """One figure with its words."""

    title: str
    svg: str | None
    """None where there is nothing finite to draw."""

    caption: str


def render(template: Path, **values: Any) -> str:
    """Return a page that needs nothing but itself; the same values give the same bytes.

    Args:
        template: `NAME.html.j2`. Its style is that of reports and `NAME.css` beside it, its script
            `NAME.js`, where there are such files.
        values: What it shows, beside `words`, the functions that write numbers.
    """
    name = template.name.partition(".")[0]
    styles = dict.fromkeys((_SHARED / "report.css", template.with_name(f"{name}.css")))
    script = _read(template.with_name(f"{name}.js"))
    # The page's policy admits this script and no other.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {"words": formatting, "style": "".join(map(_read, styles)), "script": script}
    page = _environment(template.parent).get_template(template.name)
    return page.render(**shared, script_hash=allowed, **values)


def render_listening_page(test: ListeningTest) -> str:
    """Return the page of a listening test."""
    template = _SHARED / "listening.html.j2"
    return render(template, test=test, document=test.model_dump_json())


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def draw_svg(label: str, draw: Callable[[], Figure | None]) -> str | None:
    """Return a figure as an `<svg>` element for a page; None where there is nothing to draw.

    Args:
        label: Text alternative: plain words, no markup, and another one for each figure.
        draw: Draws it, with `new_axes` and `COLORS`.
    """
    # Our settings, whatever the user's matplotlib is set to. Identifiers come of the content
    # and the salt: the same in every run, other in every figure.
    with style.context(["default", {**_SETTINGS, "svg.hashsalt": label}]):
        figure = draw()
        return None if figure is None else _inline_svg(figure, label)


def new_axes(left: float = 0.03) -> tuple[Figure, Axes]:
    """Return a figure and its axes, with a margin for a scale on the left or without."""
    # The class, not pyplot: no window, no global list of figures.
    figure = Figure(figsize=_SIZE)
    axes = figure.subplots()
    figure.subplots_adjust(left=left, right=0.97, top=0.98, bottom=0.18)
    return figure, axes


def write_above(
    axes: Axes, row: int, text: str, *, above: float = 0.28, size: float = 12.5
) -> None:
    """Write above a bar or whisker, from the left edge, over whatever lines are there."""
    background = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1}
    transform = axes.get_yaxis_transform()
    axes.text(0, row - above, text, transform=transform, bbox=background, fontsize=size)


def _inline_svg(figure: Figure, label: str) -> str:
    """Return a figure as an `<svg>` element without references to anything outside the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    for pattern in _DROPPED:
        svg = pattern.sub("", svg)
    for name, color in COLORS.items():
        svg = svg.replace(color, f"var(--{name})")
    svg = re.sub(r'<svg width="[^"]*" height="[^"]*"', "<svg", svg, count=1)
    return svg.strip().replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
