"""The results as JSON, as tables and as a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any

import numpy as np

from benchmarks.report import COLORS, MISSING, render, write_report
from tts_compress.evaluation.formatting import signed
from tts_compress.recipes.formats import Quality

FASTEST = "int8@fast"
"""Seconds of making are compared with its."""

_MARKERS = "osv^DPX*dh"
_BOUNDS = {quality.value: quality.bound for quality in Quality if quality.bound is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate on one voice."""

    kind: str
    name: str
    error: str | None = None
    size_bytes: int = 0
    size_ratio: float = 0.0
    seconds: float | None = None
    """Time that making it took; None of a file that was given."""

    metrics: dict[str, Any] | None = None
    """Values of metrics by name, as a report of an evaluation has them."""

    rises_db: Sequence[float | None] = ()
    """Rise of the floor of pauses by text; None where the text has no pause."""

    moved: Sequence[bool] = ()
    failed: Sequence[str] = ()
    timing: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceFigures:
    """All candidates on one voice."""

    name: str
    processor: str
    size_bytes: int
    suite: str
    texts: Sequence[str]
    environment: dict[str, Any]
    rows: Sequence[Row]

    @staticmethod
    def from_json(text: str) -> "VoiceFigures":
        """Return what `asdict` was written of."""
        document = json.loads(text)
        rows = tuple(Row(**row) for row in document.pop("rows"))
        return VoiceFigures(**document, rows=rows)


def write_figures(voices: Sequence[VoiceFigures], stem: Path) -> list[Path]:
    """Write `<stem>.json`, `<stem>.md` and, of voices that were timed, `<stem>.svg`."""
    document = {"voices": [asdict(voice) for voice in voices]}
    timed = [voice for voice in voices if any(row.timing for row in voice.rows)]
    draw = (lambda pyplot: _draw(timed, pyplot)) if timed else None
    promises = ", ".join(f"`{name}` promises {bound}" for name, bound in _BOUNDS.items())
    filters = {"label": _label, "processor": _processor, "ends": _interval, "pauses": _pauses}
    filters |= {"gates": _gates, "seconds": _seconds, "ratio": lambda value: f"{value:.2f}×"}
    shown = {"voices": voices, "bounds": promises}
    lines = render(Path(__file__).with_name("report.md"), shown, filters)
    return write_report(stem, document, lines, draw)


def _processor(voice: VoiceFigures) -> str:
    environment = voice.environment
    processor, packages = environment["processor"], environment["packages"]
    versions = f"onnxruntime {packages['onnxruntime']}"
    if voice.processor != "native":
        return f"the kernels of {voice.processor} on an {processor['model']}; {versions}"
    return f"{processor['model']}, {processor['integer_kernels']}; {versions}"


def _interval(ends: Sequence[float] | None) -> str:
    # Zero is added because a number that rounds to zero would keep its sign.
    return "" if ends is None else f" ({round(ends[0], 2) + 0:.2f} … {round(ends[1], 2) + 0:.2f})"


def _gates(failed: Sequence[str]) -> str:
    names = [name.removesuffix(".utterances").partition(".interval")[0] for name in failed]
    return f"fails: {', '.join(names)}" if names else "passes"


def _pauses(row: Row, texts: Sequence[str]) -> str:
    rises = [(rise, index) for index, rise in enumerate(row.rises_db) if rise is not None]
    if not rises:
        return MISSING
    worst, index = max(rises)
    text = shorten(texts[index].replace("|", " "), 32, placeholder=" …")
    return f"{signed(median(rise for rise, _ in rises), 1)}, {signed(worst, 1)} ({text})"


def _seconds(row: Row, rows: Sequence[Row]) -> str:
    if row.seconds is None:
        return MISSING
    fast = next((other.seconds for other in rows if other.name == FASTEST), None)
    times = "" if fast is None else f" ({row.seconds / fast:.1f}×)"
    return f"{row.seconds:.0f} s{times}"


def _label(name: str) -> str:
    scheme, _, quality = name.partition("@")
    return f"{scheme} --quality {quality}" if quality else name


def _draw(voices: Sequence[VoiceFigures], pyplot: Any) -> Any:
    """Draw speed against distortion, a panel for each voice, with the front of what is best."""
    figure, panels = pyplot.subplots(
        1, len(voices), figsize=(4.4 * len(voices) + 1.6, 4.4), squeeze=False, layout="constrained"
    )
    for voice, panel in zip(voices, panels[0], strict=True):
        points = [(1.0, 0.0)]
        panel.plot(*points[0], "s", color=COLORS["reference"], label="FP32")
        for marker, row in zip(_MARKERS, voice.rows, strict=False):
            if row.timing is None or row.metrics is None:
                continue
            distortion = row.metrics["distortion"]
            points.append((row.timing["ratio_median"], distortion["value"]))
            arms = [
                np.abs(np.subtract(ends or (point, point), point))[:, None]
                for point, ends in zip(
                    points[-1], (row.timing["interval"], distortion["interval"]), strict=True
                )
            ]
            label = ("onnxruntime " if row.kind == "peer" else "") + _label(row.name)
            look = {"fmt": marker, "color": COLORS[row.kind], "linewidth": 0.8, "label": label}
            panel.errorbar(*points[-1], xerr=arms[0], yerr=arms[1], **look)
        panel.step(*zip(*front(points), strict=True), where="pre", color="#bbbbbb", zorder=0)
        for name, bound in _BOUNDS.items():
            panel.axhline(bound, color="#cc6655", linewidth=0.8, linestyle="--", zorder=0)
            panel.annotate(name, (1.0, bound), xycoords=("axes fraction", "data"), fontsize=8)
        panel.set_yscale("symlog", linthresh=0.5)
        panel.set(title=voice.name, xlabel="times faster than FP32", xlim=(0, None))
        panel.set_ylim(-0.1, max(2.0, 1.3 * max(y for _, y in points)))
    panels[0][0].set_ylabel("distortion (1: telephone coding)")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points than which none is both faster and less distorted, slowest first."""
    kept: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: (-point[0], point[1])):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept[::-1]
