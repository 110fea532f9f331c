"""Show what each layer costs and saves in each format.

Examples:
    sensitivity demo --output out/sensitivity
    sensitivity voice.onnx --groups 'dec.ups.*' 'flow.*' --formats int8 --output out/s
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tts_compress.cli.command import (
    MODEL,
    REUSED,
    Command,
    Option,
    Output,
    check_unused,
    options_from,
    required_output,
)
from tts_compress.search.options import SensitivityOptions

if TYPE_CHECKING:
    from rich.table import Table

    from tts_compress.search.outcome import Sensitivity

_SHOWN = 15
"""Lines in the terminal; the page has all."""


COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    required_output(
        "--output DIR", "for document and page; a run into it that was interrupted goes on"
    ),
    *Option.each_of(SensitivityOptions),
    Option("--force", "replace an existing result"),
    resumes=True,
)


def run(options: Namespace) -> Output:
    """Measure every layer, write document and page, and print the most audible parts."""
    from tts_compress.terminal import progress_bars

    check_unused(options, "sensitivity.json", "result", REUSED)
    with progress_bars() as progress:
        progress.advance("prepare", 0, 3)
        from tts_compress.search.outcome import write_result
        from tts_compress.search.sensitivity import find_sensitivity

        chosen = options_from(options, SensitivityOptions, progress=progress)
        sensitivity = find_sensitivity(options.model, options.output, chosen)
    page = write_result(sensitivity, options.output)
    return Output(sensitivity.model_dump(mode="json"), [_table(sensitivity), f"page: {page}"])


def _table(sensitivity: Sensitivity) -> Table:
    """Return the most audible parts."""
    from rich.table import Table

    labels = (
        "part",
        "format",
        "distortion, same noise",
        "durations, frames",
        "saves kB",
        "saves ms",
    )
    table = Table(*labels, title=f"{min(_SHOWN, len(sensitivity.rows))} of {len(sensitivity.rows)}")
    for row in sensitivity.rows[:_SHOWN]:
        values = (f"{row.damage.same_noise:.4f}", f"{row.damage.duration_frames:.4f}")
        saved = (f"{row.saved_bytes / 1000:.1f}", f"{row.saved_ms:.2f}")
        table.add_row(row.group, row.format, *values, *saved)
    return table
