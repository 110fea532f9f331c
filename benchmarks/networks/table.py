"""The results of a network as the terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.terminal import human_bytes, show

if TYPE_CHECKING:
    from benchmarks.networks.run import Contestant, Result


def print_table(result: Result) -> None:
    """Print every contestant of a network, ratios over FP32."""
    from rich.table import Table

    table = Table(title=f"{result.summary} ({result.parameters / 1e6:.0f} M)", box=None)
    table.add_column("contestant")
    for timing in result.contestants[0].timings:
        table.add_column(f"ms, {timing.threads} thr.", justify="right")
        table.add_column("speed", justify="right")
    for column in ("file", "smaller", "load peak", "SNR"):
        table.add_column(column, justify="right")
    for contestant in result.contestants:
        table.add_row(*_row(contestant, len(result.contestants[0].timings)))
    show(table)


def _row(contestant: Contestant, timings: int) -> list[str]:
    if contestant.error is not None:
        return [contestant.name, f"failed: {contestant.error}"[:60]]
    cells = [contestant.name]
    for timing in contestant.timings:
        cells += [f"{timing.min_ms:.1f}", f"{timing.ratio_min:.2f}×"]
    cells += [""] * (1 + 2 * timings - len(cells))
    if contestant.file_bytes is None or contestant.size_ratio is None:
        cells += ["", "", ""]
    else:
        cells += [
            human_bytes(contestant.file_bytes),
            f"{contestant.size_ratio:.2f}×",
            f"{contestant.load_peak_ratio:.2f}",
        ]
    return [*cells, "" if contestant.snr_db is None else f"{contestant.snr_db:.1f} dB"]
