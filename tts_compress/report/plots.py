"""The figures of the page, as inline SVG that follows its colours, its font and its width."""

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tts_compress.errors import MissingExtraError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metrics.error_rates import ErrorRate
from tts_compress.evaluation.result import Evaluation

# Inches at 72 units each: 380 units wide, about the width of a phone, so that the text of the
# plots has its natural size there and in the three columns of a desktop.
_SIZE = (380 / 72, 270 / 72)

# Stand-ins that matplotlib accepts; in the SVG each becomes a variable of the page's style sheet,
# so that a plot turns dark together with the page. None is black: black is left out of the SVG.
_INK = "#010101"
_MUTED = "#010102"
_GRID = "#010103"
_REFERENCE = "#010104"
_CANDIDATE = "#010105"
_FLOOR = "#010106"
_PAPER = "#010107"

_VARIABLES = {
    _INK: "--ink",
    _MUTED: "--muted",
    _GRID: "--line",
    _REFERENCE: "--reference",
    _CANDIDATE: "--candidate",
    _FLOOR: "--floor",
    _PAPER: "--paper",
}

_SETTINGS = {
    "svg.fonttype": "none",  # text stays text: searchable, read aloud, a tenth of the bytes
    "font.size": 12.5,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "xtick.color": _GRID,
    "xtick.labelcolor": _MUTED,
    "ytick.color": _GRID,
    "ytick.labelcolor": _MUTED,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure with its words."""

    title: str
    svg: str | None
    """None where there is nothing finite to draw."""

    caption: str


def plots(evaluation: Evaluation) -> tuple[Plot, ...]:
    """Return the figures of the page.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with _drawing():
        return (_words(evaluation), _distances(evaluation), _costs(evaluation))


def _words(evaluation: Evaluation) -> Plot:
    """Draw the forest plot: each change of the word error rate as a point with its interval."""
    floors = evaluation.floors
    lines: list[tuple[str, ErrorRate, str]] = [
        ("Compressed against reference", evaluation.wer, _CANDIDATE),
        ("Reference, other seeds", floors.other_seeds, _FLOOR),
        ("Recognizer alone", floors.recognizer, _FLOOR),
    ]
    shown = [line for line in lines if _all_finite(line[1].delta, *line[1].interval)]
    drawn = None
    if shown:
        figure, axes = _axes()
        axes.axvline(0, color=_MUTED, linewidth=1.2)
        axes.grid(axis="x")
        for place, (name, rate, color) in enumerate(shown):
            _whisker(axes, place, rate, color)
            change = f"{name}: {formatting.points(rate.delta)}"
            _label(axes, place, change)
        axes.set(ylim=(len(shown) - 0.5, -0.75), yticks=[], xlabel="change in percentage points")
        axes.margins(x=0.08)
        drawn = _inline_svg(figure, "Forest plot of the changes of the word error rate")
    return Plot(
        title="Words: change and noise floors",
        svg=drawn,
        caption=(
            "Change of the word error rate with its 95 % interval; right of zero is worse. The two "
            "floors compare the reference with itself: a change no wider than they are is noise."
        ),
    )


def _whisker(axes: Any, place: int, rate: ErrorRate, color: str) -> None:
    low, high = (100 * bound for bound in rate.interval)
    axes.plot([low, high], [place, place], color=color, linewidth=3, solid_capstyle="round")
    axes.plot([100 * rate.delta], [place], "o", color=color, markersize=9)


def _distances(evaluation: Evaluation) -> Plot:
    """Draw the histogram of the utterances' distances, with the floor as a line."""
    values = [u.log_mel_distance_db for u in evaluation.utterances]
    values = [value for value in values if math.isfinite(value)]
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    drawn = None
    if values:
        figure, axes = _axes(wide=False)
        axes.grid(axis="y")
        # Starting from zero: the distance to the floor is the message, not the spread.
        widest = max(*values, floor if math.isfinite(floor) else 0.0, 0.1)
        bins = min(48, max(24, math.isqrt(len(values)) * 3))
        axes.hist(values, bins=bins, range=(0, widest), color=_CANDIDATE)
        if math.isfinite(floor):
            axes.axvline(floor, color=_FLOOR, linewidth=3)
            side = {"ha": "right", "xytext": (-6, -12)} if floor > widest / 2 else {"ha": "left"}
            axes.annotate(
                "other seeds",
                (floor, 1),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                **({"xytext": (6, -12)} | side),
            )
        axes.set(xlim=(0, widest * 1.03), xlabel="log-mel distance, dB", ylabel="utterances")
        axes.yaxis.get_major_locator().set_params(integer=True)
        drawn = _inline_svg(figure, "Histogram of the log-mel distance of each utterance")
    return Plot(
        title="Sound: distance from the reference",
        svg=drawn,
        caption=(
            "Number of utterances by log-mel distance, compressed against reference with the same "
            "noise. The line is the mean distance of two seeds of the reference."
        ),
    )


def _costs(evaluation: Evaluation) -> Plot:
    """Draw what the candidate needs as a share of what the reference needs."""
    latency, memory, load = evaluation.latency, evaluation.memory, evaluation.load
    bytes_ = (evaluation.size.reference_bytes, evaluation.size.candidate_bytes)
    times = (latency.reference.mean_ms, latency.candidate.mean_ms)
    tails = (latency.reference.p95_ms, latency.candidate.p95_ms)
    peaks = (memory.reference.peak_bytes, memory.candidate.peak_bytes)
    candidates = [
        ("Size", *bytes_, formatting.bytes_of),
        ("Latency, mean", *times, formatting.milliseconds),
        ("Latency, p95", *tails, formatting.milliseconds),
        ("Peak memory", *peaks, formatting.bytes_of),
        ("Load time", load.reference.open_ms, load.candidate.open_ms, formatting.milliseconds),
    ]
    bars = [bar for bar in candidates if _all_finite(bar[1], bar[2]) and bar[1] > 0]
    drawn = None
    if bars:
        figure, axes = _axes()
        axes.grid(axis="x")
        for place, (name, reference, candidate, written) in enumerate(bars):
            axes.barh(place, 100 * candidate / reference, height=0.34, color=_CANDIDATE)
            text = f"{name}: {written(candidate)} of {written(reference)}"
            _label(axes, place, text)
        axes.axvline(100, color=_REFERENCE, linewidth=3)
        axes.set(ylim=(len(bars) - 0.6, -0.75), yticks=[], xlabel="per cent of the reference")
        drawn = _inline_svg(figure, "Bars of size, latency, memory and load time")
    return Plot(
        title="Cost: share of the reference",
        svg=drawn,
        caption="What the compressed model needs of what the reference needs; shorter is better.",
    )


def _label(axes: Any, place: int, text: str) -> None:
    """Write above a bar or whisker, from the left edge, over whatever lines are there."""
    background = {"facecolor": _PAPER, "edgecolor": "none", "pad": 1}
    axes.text(0, place - 0.28, text, transform=axes.get_yaxis_transform(), bbox=background)


def _axes(*, wide: bool = True) -> tuple[Any, Any]:
    """Return a figure and its axes; `wide` ones have no scale on the left."""
    # The class, not pyplot: no window, no global list of figures.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.03 if wide else 0.12, right=0.97, top=0.98, bottom=0.18)
    return figure, axes


def _all_finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


@contextmanager
def _drawing() -> Iterator[None]:
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


def _inline_svg(figure: Any, label: str) -> str:
    """Return a figure as an `<svg>` element without references to anything outside the page.

    Args:
        figure: A matplotlib figure drawn inside `_drawing()`.
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
