"""The sweep's page: all pairs in a table and in pictures, each with its report; what failed."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from matplotlib.figure import Figure

from tts_compress.evaluation.formatting import bytes_of, count, is_finite, percent
from tts_compress.report.pages import COLORS, Plot, draw_svg, new_axes, render
from tts_compress.sweep.report import Entry, SweepReport

_TEMPLATE = Path(__file__).with_name("templates") / "sweep.html.j2"

_MARKERS = "osD^vPX*<>"
"""Shapes of schemes, in the order of the plan; after the last one they come again."""

_SHADES = ("candidate", "floor", "reference", "ink")


class _Quantity(NamedTuple):
    """An axis of a picture, or a column of the table, by which it can be sorted."""

    label: str
    value: Callable[[Entry], float | None]
    show: Callable[[float | None], str] = percent
    best: str = ""
    """The word for the pair that has most of it; empty where none is shown."""

    term: str = ""
    """Help."""


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}×" if is_finite(ratio) else ""


def _score(score: float | None) -> str:
    return f"{score:.2f}" if is_finite(score) else ""


_SIZE = _Quantity("size, share of the reference in %", lambda e: 100 / e.size_ratio)
_SPEED = _Quantity("speed, times the reference's", lambda e: e.speed)
_WORDS = _Quantity("change of WER, points", lambda e: e.wer_delta and 100 * e.wer_delta)
_OPINION = _Quantity("DNSMOS, overall", lambda e: e.dnsmos_candidate)

_COLUMNS = (
    _Quantity("Size", lambda e: e.candidate_bytes, bytes_of),
    _Quantity("Smaller", lambda e: e.size_ratio, _times, "Smallest"),
    _Quantity(
        "Faster",
        lambda e: e.speed,
        _times,
        "Fastest",
        "Latency of the reference as a multiple of the compressed voice's, in turns on one machine "
        "with nothing else to do.",
    ),
    _Quantity(
        "Sooner",
        lambda e: e.first_audio_ratio,
        _times,
        "Soonest heard",
        "Time until the reference's first sound as a multiple of the compressed voice's.",
    ),
    _Quantity(
        "Less memory",
        lambda e: e.memory_ratio,
        _times,
        "Least memory",
        "Memory of the reference as a multiple of the compressed voice's, without that of Python "
        "and the runtime.",
    ),
    _Quantity(
        "Distortion",
        lambda e: e.distortion,
        percent,
        "",
        "What compression adds to the sound, as a share of what telephone coding (8-bit mu-law) "
        "adds; 100 % is as much.",
    ),
    _Quantity("Reference DNSMOS", lambda e: e.dnsmos_reference, _score),
    _Quantity(
        "DNSMOS",
        lambda e: e.dnsmos_candidate,
        _score,
        "",
        "An opinion score from 1 to 5 that a network predicts; a change counts, the value does "
        "not.",
    ),
    _Quantity("Reference WER", lambda e: e.wer_reference, percent),
)
"""The columns before those of the change of words; one of which no pair has a value is left out."""

_PICTURES = (
    ("Size and words", "size and words", _SIZE, _WORDS, "left and low"),
    ("Speed and words", "speed and words", _SPEED, _WORDS, "right and low"),
    ("Size and opinion", "size and opinion score", _SIZE, _OPINION, "left and high"),
)


def render_page(sweep: SweepReport) -> str:
    """Return the page; the same document gives the same bytes."""
    return render(
        _TEMPLATE,
        sweep=sweep,
        verdict=_verdict(sweep),
        pictures=_pictures(sweep),
        link=quote,
        best=_best(sweep),
        columns=[
            column
            for column in _COLUMNS
            if any(column.value(entry) is not None for entry in sweep.entries)
        ],
    )


def _verdict(sweep: SweepReport) -> str:
    """Return the whole sweep as a few sentences."""
    pairs = len(sweep.voices) * len(sweep.schemes)
    passed = sum(all(entry.gates.values()) for entry in sweep.entries)
    done = f"{len(sweep.entries)} of {pairs} pairs of voice and scheme have a report"
    judged = f"; {passed} passed every gate" if sweep.entries else ""
    failures = len(sweep.failures)
    failed = f" {count(failures, 'failure')}." if failures else ""
    left = f" {sweep.left} of {sweep.units} units are still to be done." if sweep.left else ""
    return f"{done}{judged}.{failed}{left}"


def _best(sweep: SweepReport) -> list[tuple[str, Entry]]:
    """Return the pair that has most of each quantity, of those that passed every gate."""
    passed = [entry for entry in sweep.entries if entry.gates and all(entry.gates.values())]
    best = []
    for column in _COLUMNS:
        measured = [(value, e) for e in passed if is_finite(value := column.value(e))]
        if column.best and measured:
            first = max(measured, key=itemgetter(0))[1]
            best.append((f"{column.best} that passed", first))
    return best


def _pictures(sweep: SweepReport) -> list[Plot]:
    plots = []
    for title, label, across, up, better in _PICTURES:
        points = [
            entry
            for entry in sweep.entries
            if is_finite(across.value(entry)) and is_finite(up.value(entry))
        ]
        if points or up is not _OPINION:
            draw = partial(_scatter, points, sweep.schemes, across, up)
            caption = f"Better is {better}. Each point leads to its report."
            plots.append(Plot(title, draw_svg(f"Scatter plot of {label}", draw), caption))
    return plots


def _scatter(
    entries: list[Entry], schemes: tuple[str, ...], across: _Quantity, up: _Quantity
) -> Figure | None:
    """Draw a point for each pair, which leads to its report; a shape and shade for each scheme."""
    if not entries:
        return None
    figure, axes = new_axes(left=0.16)
    axes.grid()
    if up is _WORDS:
        axes.axhline(0, color=COLORS["muted"], linewidth=1.2)
    for number, scheme in enumerate(schemes):
        of_scheme = [entry for entry in entries if entry.scheme == scheme]
        points = axes.scatter(
            np.array([across.value(entry) for entry in of_scheme], np.float64),
            np.array([up.value(entry) for entry in of_scheme], np.float64),
            s=64,
            marker=_MARKERS[number % len(_MARKERS)],
            color=COLORS[_SHADES[number % len(_SHADES)]],
            edgecolors=COLORS["paper"],
            linewidths=0.8,
            label=scheme,
        )
        points.set_urls([quote(entry.report) for entry in of_scheme])
    axes.set(xlabel=across.label, ylabel=up.label)
    axes.margins(0.1)
    _add_legend(figure, len(schemes))
    return figure


def _add_legend(figure: Figure, names: int) -> None:
    """Put the names of the points below a figure, which grows by that: inside they hide points."""
    width, height = figure.get_size_inches()
    below = (8 + 20 * -(-names // 2)) / 72
    share = height / (height + below)
    figure.set_size_inches(width, height + below)
    figure.subplots_adjust(bottom=1 - share * 0.82, top=1 - share * 0.02)
    figure.legend(loc="lower left", ncols=2, frameon=False, borderpad=0, columnspacing=1.0)
