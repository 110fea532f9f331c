"""Printed tables: one per voice, one row per contestant and setting."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.results import Bench, ContestantResult, Fidelity, VoiceResult

_NONE = "–"
_LABELS = {"reference": "", "peer": "onnxruntime ", "scheme": ""}


def print_tables(found: Bench) -> None:
    """Print, for each voice, a table of files and one of speed, and what failed."""
    # A log has no width of its own; these tables need more than the usual 80 columns.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 140)
    for voice in found.voices:
        console.print(_files(voice), _speeds(voice))
        for contestant in voice.contestants:
            if contestant.error is not None:
                console.print(f"{_label(contestant)} failed: {contestant.error}", soft_wrap=True)


def _label(contestant: ContestantResult) -> str:
    return _LABELS[contestant.kind] + contestant.name


def _files(voice: VoiceResult) -> Table:
    table = _table(
        f"{_title(voice)}, {voice.sample_rate} Hz: size, memory and distance to FP32",
        "contestant|MB|smaller|peak MB|SNR dB|log-mel dB|durations kept|length|made in|peak MB",
    )
    for contestant in _sound(voice):
        memory, making = contestant.memory, contestant.making
        table.add_row(
            _label(contestant),
            f"{contestant.size_bytes / 1e6:.2f}",
            f"{contestant.size_ratio:.2f}×",
            f"{memory.peak_bytes / 1e6:.0f}" if memory else _NONE,
            *_distance(contestant.fidelity),
            f"{making.seconds:.1f} s" if making else _NONE,
            f"{making.peak_bytes / 1e6:.0f}" if making else _NONE,
        )
    table.add_section()
    table.add_row("fp32, other noise", _NONE, _NONE, _NONE, *_distance(voice.noise_floor))
    return table


def _title(voice: VoiceResult) -> str:
    return f"{voice.name}, {voice.weights} weights"


def _distance(fidelity: Fidelity | None) -> tuple[str, str, str, str]:
    if fidelity is None:
        return (_NONE,) * 4
    snr, kept, change = fidelity.snr_db, fidelity.kept_durations, fidelity.duration_change
    return (
        _NONE if snr is None else f"{snr:.1f}",
        f"{fidelity.log_mel_db:.2f}",
        _NONE if kept is None else f"{kept:.2%}",
        _NONE if change is None else f"{change:+.2%}",
    )


def _speeds(voice: VoiceResult) -> Table:
    """Return times faster than FP32, by minimum and by median, and the real-time factor."""
    fp32 = voice.contestants[0]
    columns = [f"{t.sentence}, {_threads(t.threads)}" for t in fp32.timings]
    table = _table(
        f"{_title(voice)}: times faster than FP32 (minimum / median, 95 % interval of the mean), "
        "real-time factor",
        "|".join(["contestant", *columns]),
    )
    changed = False
    for contestant in _sound(voice):
        cells = []
        for t in contestant.timings:
            mark = f" ({t.length_change:+.1%}*)" if t.length_change else ""
            changed |= bool(mark)
            spread = "" if t.interval is None else f" {t.interval[0]:.2f}–{t.interval[1]:.2f}"
            cells.append(f"{t.ratio_min:.2f} / {t.ratio_median:.2f}{spread}, {t.rtf:.3f}{mark}")
        table.add_row(_label(contestant), *cells)
    if changed:
        table.caption = "* the audio is so much longer than FP32's: durations moved"
    return table


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _sound(voice: VoiceResult) -> Sequence[ContestantResult]:
    return [contestant for contestant in voice.contestants if contestant.error is None]


def _table(title: str, columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns.split("|")):
        table.add_column(column, justify="right" if index else "left")
    return table
