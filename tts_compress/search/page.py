"""The pages of sensitivity and search, in the style of the report."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tts_compress.evaluation import formatting
from tts_compress.report.pages import COLORS, Plot, draw_svg, new_axes, render, write_above
from tts_compress.report.summary import flatten
from tts_compress.search.outcome import (
    Judged,
    Point,
    Row,
    SearchResult,
    Sensitivity,
    candidates,
    is_share,
    show_cost,
)

_TEMPLATES = Path(__file__).with_name("templates")

_MARKERS = "osD^vP*X"
_SHADES = ("candidate", "floor", "reference", "muted")

_LEAST = 1e-5
"""Damage that is drawn at the left edge: less is nothing."""

_WIDE, _LINE, _EDGES = 380 / 72, 34 / 72, 112 / 72
"""Width of a plot, height of a line of it and of its edges; inches."""

_SOUND = "distortion with the same noise, 1 is what mu-law adds"
_DURATIONS = "mean change of a duration before it is made whole, frames"


def sensitivity_page(sensitivity: Sensitivity) -> str:
    """Return the page of a sensitivity analysis."""
    return render(
        _TEMPLATES / "sensitivity.html.j2",
        flatten=flatten,
        found=sensitivity,
        # The component with the most damage first.
        plots=[
            _component_plot(sensitivity, n)
            for n in dict.fromkeys(r.component for r in sensitivity.rows)
        ],
        prediction=_prediction(sensitivity),
    )


def _marker(names: Sequence[str], name: str) -> dict[str, Any]:
    """Return the shape and colour of a format, as arguments of a drawing."""
    index = names.index(name)
    color = COLORS[_SHADES[index % len(_SHADES)]]
    return {"marker": _MARKERS[index % len(_MARKERS)], "color": color}


def _prediction(sensitivity: Sensitivity) -> str:
    values = {"sound": sensitivity.prediction.sound, "durations": sensitivity.prediction.durations}
    stated = [f"{value:.2f} ({name})" for name, value in values.items() if value is not None]
    skipped = sum(row.measured is None for row in sensitivity.rows)
    ranked = f"rank correlation with what was measured: {', '.join(stated)}" if stated else ""
    left_out = f"{skipped} of {len(sensitivity.rows)} negligible ones are estimates only"
    return "; ".join(filter(None, (ranked, left_out)))


def _component_plot(sensitivity: Sensitivity, component: str) -> Plot:
    rows = [row for row in sensitivity.rows if row.component == component]
    of_sound = any(row.damage.same_noise > 0.0 for row in rows)
    label = f"Damage of each part of {component} by format"
    path, axis = (
        ("damage.same_noise", _SOUND) if of_sound else ("damage.duration_frames", _DURATIONS)
    )
    draw = partial(_draw_component, rows, sensitivity.formats, attrgetter(path), axis)
    caption = "Each part alone in each format, all others in FP32; further left is better."
    return Plot(formatting.one_line(component, 40), draw_svg(label, draw), caption)


def _draw_component(
    rows: Sequence[Row], formats: Sequence[str], value: Callable[[Row], float], label: str
) -> Figure:
    worst: dict[str, float] = {}
    for row in rows:
        worst[row.group] = max(worst.get(row.group, 0.0), value(row))
    order = sorted(worst, key=lambda group: worst[group], reverse=True)
    figure, axes = new_axes()
    height = _EDGES + _LINE * (len(order) + 1)
    figure.set_size_inches(_WIDE, height)
    figure.subplots_adjust(top=1 - 62 / 72 / height, bottom=50 / 72 / height)
    axes.grid(axis="x")
    axes.set_xscale("log")
    for line, group in enumerate(order):
        for row in (row for row in rows if row.group == group):
            shape = _marker(formats, row.format)
            face = shape["color"] if row.measured is not None else "none"
            axes.plot([max(value(row), _LEAST)], [line], markersize=8, mfc=face, **shape)
        write_above(axes, line, formatting.one_line(group, 48), above=0.26, size=11)
    axes.set(ylim=(len(order) - 0.5, -0.9), yticks=[], xlabel=label)
    axes.margins(x=0.06)
    _add_legend(axes, {name: _marker(formats, name) for name in formats})
    return figure


def _add_legend(axes: Axes, shapes: Mapping[str, Mapping[str, Any]]) -> None:
    """Name shapes in a line above a plot."""
    handles = [Line2D([], [], linestyle="", label=n, **shape) for n, shape in shapes.items()]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=max(2, math.ceil(len(handles) / 2)),
        frameon=False,
        borderpad=0,
        handletextpad=0.1,
        columnspacing=0.8,
    )


def search_page(result: SearchResult) -> str:
    """Return the page of a search."""
    draw = partial(_draw_front, result)
    caption = (
        "Each choice by cost and damage on the short texts; left and low is better. The line joins "
        "those that no other is better than; the dashed one is the damage that was admitted."
    )
    label = "Scatter plot of cost and damage with the Pareto front"
    return render(
        _TEMPLATES / "search.html.j2",
        flatten=flatten,
        found=result,
        plot=Plot("Cost and damage", draw_svg(label, draw), caption),
        candidates=candidates(result),
        show_cost=show_cost,
        choice=next(
            (judged.choice for judged in result.judged if judged.name == result.chosen), None
        ),
    )


def _draw_front(result: SearchResult) -> Figure | None:
    if not result.points:
        return None
    scale = 1.0 if is_share(result.unit) else 1e-6
    figure, axes = new_axes(left=0.16)
    figure.subplots_adjust(top=0.86)
    axes.grid()

    def draw(points: Sequence[Point | Judged], **style: Any) -> None:
        axes.plot([p.cost * scale for p in points], [p.damage.distortion for p in points], **style)

    every = {"marker": "o", "color": COLORS["muted"]}
    baseline = {"marker": "D", "color": COLORS["reference"]}
    judged = {"marker": "s", "color": COLORS["floor"]}
    draw(result.points, ls="", ms=5, **every)
    draw(result.front, color=COLORS["candidate"], lw=2)
    draw(result.judged, ls="", **judged)
    draw([result.baseline], ls="", ms=8, **baseline)
    axes.axhline(result.admitted, color=COLORS["muted"], linestyle="--", linewidth=1.2)
    unit = result.unit.replace("bytes", "megabytes")
    axes.set(xlabel=unit, ylabel="distortion")
    axes.locator_params(axis="x", nbins=6)
    _add_legend(axes, {"choice": every, "judged": judged, "int8": baseline})
    return figure
