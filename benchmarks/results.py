"""The results of `make bench`: what `bench.json` holds, the printed tables and the picture."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.contestants import MakingCost
from benchmarks.fidelity import Fidelity
from benchmarks.report import COLORS, MISSING, open_pyplot
from benchmarks.timing import Memory, Timing

_LABELS = {"reference": "", "peer": "onnxruntime ", "scheme": ""}
_MARKERS = {"reference": "s", "peer": "o", "scheme": "D"}
_LEGEND = {"reference": "FP32", "peer": "stock onnxruntime", "scheme": "tts-compress"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestantResult:
    """One contestant on one voice."""

    kind: str
    name: str
    error: str | None = None
    size_bytes: int = 0
    size_ratio: float = 0.0
    making: MakingCost | None = None
    memory: Memory | None = None
    fidelity: Fidelity | None = None
    timings: tuple[Timing, ...] = ()

    @property
    def label(self) -> str:
        """Its name in tables."""
        return _LABELS[self.kind] + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceResult:
    """All contestants on one voice; the first is FP32."""

    name: str
    weights: Literal["random", "trained"]
    sample_rate: int
    sha256: str
    sentences: dict[str, int]
    """Ids that the graph is given, by sentence."""

    noise_floor: Fidelity
    """FP32 with one noise against FP32 with another."""

    contestants: tuple[ContestantResult, ...]

    @property
    def sound(self) -> list[ContestantResult]:
        """Contestants that did not fail."""
        return [contestant for contestant in self.contestants if contestant.error is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run."""

    environment: dict[str, object]
    rounds: int
    warm_ups: int
    voices: tuple[VoiceResult, ...]
    format_version: int = 2


def print_tables(bench: Bench) -> None:
    """Print, for each voice, a table of files and one of speed, and what failed."""
    # A log has no width; these tables need more than the usual 80 columns.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 140)
    for voice in bench.voices:
        console.print(_files(voice), _speeds(voice))
        for contestant in voice.contestants:
            if contestant.error is not None:
                console.print(f"{contestant.label} failed: {contestant.error}", soft_wrap=True)


def _files(voice: VoiceResult) -> Table:
    table = _table(
        f"{voice.name}, {voice.weights} weights, {voice.sample_rate} Hz: size, memory and distance "
        "to FP32",
        "contestant|MB|smaller|peak MB|SNR dB|log-mel dB|durations kept|length|made in|peak MB",
    )
    for contestant in voice.sound:
        memory, making = contestant.memory, contestant.making
        table.add_row(
            contestant.label,
            f"{contestant.size_bytes / 1e6:.2f}",
            f"{contestant.size_ratio:.2f}×",
            f"{memory.peak_bytes / 1e6:.0f}" if memory else MISSING,
            *_distance(contestant.fidelity),
            f"{making.seconds:.1f} s" if making else MISSING,
            f"{making.peak_bytes / 1e6:.0f}" if making else MISSING,
        )
    table.add_section()
    table.add_row("fp32, other noise", *[MISSING] * 3, *_distance(voice.noise_floor))
    return table


def _distance(fidelity: Fidelity | None) -> tuple[str, ...]:
    if fidelity is None:
        return (MISSING,) * 4
    snr, kept, change = fidelity.snr_db, fidelity.kept_durations, fidelity.duration_change
    return (
        MISSING if snr is None else f"{snr:.1f}",
        f"{fidelity.log_mel_db:.2f}",
        MISSING if kept is None else f"{kept:.2%}",
        MISSING if change is None else f"{change:+.2%}",
    )


def _speeds(voice: VoiceResult) -> Table:
    """Return times faster than FP32, by minimum and by median, and the real-time factor."""
    fp32 = voice.contestants[0]
    columns = [f"{t.sentence}, {_threads(t)}" for t in fp32.timings]
    table = _table(
        f"{voice.name}, {voice.weights} weights: times faster than FP32 (minimum / median, 95 % "
        "interval of the mean), real-time factor",
        "|".join(["contestant", *columns]),
    )
    for contestant in voice.sound:
        table.add_row(contestant.label, *map(_speed, contestant.timings))
    if any(t.length_change for contestant in voice.sound for t in contestant.timings):
        table.caption = "* the audio is so much longer than FP32's: durations moved"
    return table


def _speed(t: Timing) -> str:
    mark = f" ({t.length_change:+.1%}*)" if t.length_change else ""
    spread = "" if t.interval is None else f" {t.interval[0]:.2f}–{t.interval[1]:.2f}"
    return f"{t.ratio_min:.2f} / {t.ratio_median:.2f}{spread}, {t.rtf:.3f}{mark}"


def _threads(timing: Timing) -> str:
    return "1 thread" if timing.threads == 1 else f"{timing.threads} threads"


def _table(title: str, columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns.split("|")):
        table.add_column(column, justify="right" if index else "left")
    return table


def write_plot(bench: Bench, stem: Path) -> list[Path]:
    """Write `<stem>.png` and `<stem>.svg`: speed against size, a panel for each voice."""
    pyplot = open_pyplot()
    count = len(bench.voices)
    figure, panels = pyplot.subplots(
        1, count, figsize=(4.6 * count, 4.2), squeeze=False, layout="constrained"
    )
    for voice, panel in zip(bench.voices, panels[0], strict=True):
        _draw(panel, voice)
    panels[0][0].set_ylabel("times faster than FP32 (1 = FP32)")
    panels[0][0].legend(frameon=False, fontsize=8, loc="best")
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return paths


def _draw(panel: Any, voice: VoiceResult) -> None:
    points = [(c, _headline(c)) for c in voice.contestants if c.timings]
    largest = max((c.size_bytes for c, _ in points), default=0)
    shown: set[str] = set()
    for contestant, timing in points:
        kind, x, y = contestant.kind, contestant.size_bytes / 1e6, timing.ratio_min
        label = None if kind in shown else _LEGEND[kind]
        shown.add(kind)
        panel.scatter(x, y, s=36, color=COLORS[kind], marker=_MARKERS[kind], label=label)
        near_right = contestant.size_bytes > 0.8 * largest
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
        weights = "" if voice.weights == "trained" else ", random weights"
        panel.set_title(f"{voice.name}{weights}: {first.sentence}, {_threads(first)}", fontsize=10)


def _headline(contestant: ContestantResult) -> Timing:
    """Return the timing of the sentence nearest to 5 s on the fewest threads."""
    return min(contestant.timings, key=lambda t: (t.threads, abs(t.audio_s - 5.0)))
