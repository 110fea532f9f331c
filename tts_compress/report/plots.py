"""The figures of the page, as inline SVG that follows its colours, its font and its width."""

import io
import math
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tts_compress.evaluation import formatting
from tts_compress.evaluation.result import Evaluation
from tts_compress.report.blame import TITLE, ranking

# Inches at 72 units each: 380 units wide, about the width of a phone, so that the text of the
# plots has its natural size there and in the three columns of a desktop.
_SIZE = (380 / 72, 270 / 72)

_NAMES = ("ink", "muted", "line", "reference", "candidate", "floor", "paper")
COLORS = {name: f"#01010{place}" for place, name in enumerate(_NAMES, start=1)}
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


_MOST_BARS = 5
"""Components that have a bar; a figure has no room for more."""


class Plot(NamedTuple):
    """One figure with its words."""

    title: str
    svg: str | None
    """None where there is nothing finite to draw."""

    caption: str


def plots(evaluation: Evaluation) -> list[Plot]:
    """Return the figures of the page."""
    found = []
    asked = _PLOTS if evaluation.blame is None else (*_PLOTS, _BLAME)
    for title, label, caption, draw in asked:
        found.append(Plot(title, draw_svg(label, partial(draw, evaluation)), caption))
    return found


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


def _draw_words(evaluation: Evaluation) -> Figure | None:
    """Draw the forest plot: each change of the word error rate as a point with its interval."""
    lines = [
        ("Compressed against reference", evaluation.wer, "candidate"),
        ("Reference, other seeds", evaluation.floors.other_seeds, "floor"),
        ("Recognizer alone", evaluation.floors.recognizer, "floor"),
    ]
    shown = [line for line in lines if _all_finite(line[1].delta, *(line[1].interval or ()))]
    if not shown:
        return None
    figure, axes = new_axes()
    axes.axvline(0, color=COLORS["muted"], linewidth=1.2)
    axes.grid(axis="x")
    for place, (name, rate, color) in enumerate(shown):
        ends = [100 * bound for bound in rate.interval or (rate.delta, rate.delta)]
        axes.plot(ends, [place, place], color=COLORS[color], linewidth=3, solid_capstyle="round")
        axes.plot([100 * rate.delta], [place], "o", color=COLORS[color], markersize=9)
        _label(axes, place, f"{name}: {formatting.points(rate.delta)}")
    axes.set(ylim=(len(shown) - 0.5, -0.75), yticks=[], xlabel="change in percentage points")
    axes.margins(x=0.08)
    return figure


def _draw_distances(evaluation: Evaluation) -> Figure | None:
    """Draw the histogram of the utterances' distances, with the floor as a line."""
    values = [u.log_mel_distance_db for u in evaluation.utterances]
    values = [value for value in values if math.isfinite(value)]
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    if not values:
        return None
    figure, axes = new_axes(left=0.12)
    axes.grid(axis="y")
    # Starting from zero: the distance to the floor is the message, not the spread.
    widest = max(*values, floor if math.isfinite(floor) else 0.0, 0.1)
    bins = min(48, max(24, math.isqrt(len(values)) * 3))
    axes.hist(values, bins=bins, range=(0, widest), color=COLORS["candidate"])
    if math.isfinite(floor):
        axes.axvline(floor, color=COLORS["floor"], linewidth=3)
        on_left = floor > widest / 2
        axes.annotate(
            "other seeds",
            (floor, 1),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="right" if on_left else "left",
            xytext=(-6 if on_left else 6, -12),
        )
    axes.set(xlim=(0, widest * 1.03), xlabel="log-mel distance, dB", ylabel="utterances")
    axes.locator_params(axis="y", integer=True)
    return figure


def _draw_costs(evaluation: Evaluation) -> Figure | None:
    """Draw what the candidate needs as a share of what the reference needs."""
    size, load = evaluation.size, evaluation.load
    before, after = evaluation.latency.reference, evaluation.latency.candidate
    memory = (evaluation.memory.reference.model_bytes, evaluation.memory.candidate.model_bytes)
    in_bytes, in_ms = formatting.bytes_of, formatting.milliseconds
    costs = [
        ("Size", size.reference_bytes, size.candidate_bytes, in_bytes),
        ("Latency, mean", before.mean_ms, after.mean_ms, in_ms),
        ("Latency, p95", before.p95_ms, after.p95_ms, in_ms),
        ("Memory of the model", *memory, in_bytes),
        ("Load time", load.reference.open_ms, load.candidate.open_ms, in_ms),
    ]
    bars = [bar for bar in costs if _all_finite(bar[1], bar[2]) and bar[1] > 0]
    if not bars:
        return None
    figure, axes = new_axes()
    axes.grid(axis="x")
    for place, (name, reference, candidate, written) in enumerate(bars):
        axes.barh(place, 100 * candidate / reference, height=0.34, color=COLORS["candidate"])
        _label(axes, place, f"{name}: {written(candidate)} of {written(reference)}")
    axes.axvline(100, color=COLORS["reference"], linewidth=3)
    axes.set(ylim=(len(bars) - 0.6, -0.75), yticks=[], xlabel="per cent of the reference")
    return figure


def _draw_blame(evaluation: Evaluation) -> Figure | None:
    """Draw the damage of each component alone, and of the whole model below."""
    found = evaluation.blame
    if found is None:
        return None
    column = ranking(found)
    bars = [(part.component, part.values[column.path], "candidate") for part in found.parts]
    bars = [*bars[:_MOST_BARS], ("whole model", found.whole[column.path], "reference")]
    shown = [(name, value, color) for name, value, color in bars if formatting.is_finite(value)]
    figure, axes = new_axes()
    axes.grid(axis="x")
    for place, (name, value, color) in enumerate(shown):
        axes.barh(place, value, height=0.34, color=COLORS[color])
        _label(axes, place, f"{name}: {column.show(value)}")
    together = found.together.get(column.path)
    if formatting.is_finite(together):
        axes.axvline(together, color=COLORS["floor"], linewidth=3)
    axes.set(ylim=(len(shown) - 0.6, -0.75), yticks=[], xlabel=column.label)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda value, _: column.show(value))
    return figure


_Draw: TypeAlias = tuple[str, str, str, Callable[[Evaluation], Figure | None]]

_BLAME: _Draw = (
    TITLE,
    "Bars of the damage that each component does alone",
    "The reference with one compressed component at a time; shorter is better. The line is what "
    "all would do together if their errors were independent.",
    _draw_blame,
)

_PLOTS: tuple[_Draw, ...] = (
    (
        "Words: change and noise floors",
        "Forest plot of the changes of the word error rate",
        "Change of the word error rate with its 95 % interval; right of zero is worse. The two "
        "floors compare the reference with itself: a change no wider than they are is noise.",
        _draw_words,
    ),
    (
        "Sound: distance from the reference",
        "Histogram of the log-mel distance of each utterance",
        "Number of utterances by log-mel distance, compressed against reference with the same "
        "noise. The line is the mean distance of two seeds of the reference.",
        _draw_distances,
    ),
    (
        "Cost: share of the reference",
        "Bars of size, latency, memory and load time",
        "What the compressed model needs of what the reference needs; shorter is better.",
        _draw_costs,
    ),
)
"""Title, text alternative, caption and drawing of each figure; a text alternative is plain words,
no markup, and another one for each figure."""


def _label(axes: Axes, place: int, text: str) -> None:
    """Write above a bar or whisker, from the left edge, over whatever lines are there."""
    background = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1}
    axes.text(0, place - 0.28, text, transform=axes.get_yaxis_transform(), bbox=background)


def new_axes(left: float = 0.03) -> tuple[Figure, Axes]:
    """Return a figure and its axes, with a margin for a scale on the left or without."""
    # The class, not pyplot: no window, no global list of figures.
    figure = Figure(figsize=_SIZE)
    axes = figure.subplots()
    figure.subplots_adjust(left=left, right=0.97, top=0.98, bottom=0.18)
    return figure, axes


def _all_finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


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
