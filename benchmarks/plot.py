"""Speed against size, one panel per voice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.errors import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.results import Bench, ContestantResult, Timing, VoiceResult

COLORS = {"reference": "#333333", "peer": "#8a8f98", "scheme": "#0a7d5a"}
_MARKERS = {"reference": "s", "peer": "o", "scheme": "D"}
_KINDS = {"reference": "FP32", "peer": "stock onnxruntime", "scheme": "tts-compress"}


def open_pyplot() -> Any:
    """Return matplotlib's module of functions, for files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError("matplotlib", "evaluate") from error
    return pyplot


def write_plot(found: Bench, stem: Path) -> list[Path]:
    """Write `<stem>.png` and `<stem>.svg`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    pyplot = open_pyplot()
    count = len(found.voices)
    figure, panels = pyplot.subplots(
        1, count, figsize=(4.6 * count, 4.2), squeeze=False, layout="constrained"
    )
    for voice, panel in zip(found.voices, panels[0], strict=True):
        _draw(panel, voice)
    panels[0][0].set_ylabel("times faster than FP32 (1 = FP32)")
    panels[0][0].legend(frameon=False, fontsize=8, loc="best")
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return paths


def _draw(panel: Any, voice: VoiceResult) -> None:
    points = [(c, t) for c in voice.contestants if (t := _headline(c)) is not None]
    shown: set[str] = set()
    for contestant, timing in points:
        kind = contestant.kind
        x, y = contestant.size_bytes / 1e6, timing.ratio_min
        label = None if kind in shown else _KINDS[kind]
        shown.add(kind)
        panel.scatter(x, y, s=36, color=COLORS[kind], marker=_MARKERS[kind], label=label)
        near_right = x > 0.8 * max(c.size_bytes for c, _ in points) / 1e6
        panel.annotate(
            contestant.name,
            (x, y),
            xytext=(-6 if near_right else 6, 3),
            textcoords="offset points",
            ha="right" if near_right else "left",
            fontsize=8,
            color=COLORS[kind],
        )
    panel.axhline(1.0, color="#cccccc", linewidth=0.8, zorder=0)
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("size, MB")
    panel.spines[["top", "right"]].set_visible(False)
    if points:
        first = points[0][1]
        threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
        weights = "" if voice.weights == "trained" else ", random weights"
        panel.set_title(f"{voice.name}{weights}: {first.sentence}, {threads}", fontsize=10)


def _headline(contestant: ContestantResult) -> Timing | None:
    """Return the timing of the sentence nearest to 5 s on the fewest threads."""
    return min(
        contestant.timings,
        key=lambda timing: (timing.threads, abs(timing.audio_s - 5.0)),
        default=None,
    )
