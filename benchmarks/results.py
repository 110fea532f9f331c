"""The results of `make bench`: what `bench.json` holds, and the printed tables."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.contestants import MakingCost
from benchmarks.fidelity import Fidelity
from benchmarks.report import MISSING
from benchmarks.timing import Memory, Timing

_LABELS = {"reference": "", "peer": "onnxruntime ", "scheme": ""}


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


def print_tables(voices: Sequence[VoiceResult]) -> None:
    """Print, for each voice, a table of files and one of speed, and what failed."""
    # A log has no width; these tables need more than the usual 80 columns.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 140)
    for voice in voices:
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
