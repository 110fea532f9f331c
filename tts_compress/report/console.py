"""The summary as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.report import judgement, wording
from tts_compress.report.summary import summary_rows

if TYPE_CHECKING:
    from rich.table import Table

    from tts_compress.report.evaluation import Evaluation

__all__ = ["summary_table"]

_STYLES = {"better": "green", "worse": "red", "same": "", "unknown": ""}


def summary_table(evaluation: Evaluation) -> Table:
    """Return a rich table of the headline numbers, with the verdict below it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    names = (evaluation.reference.spec, evaluation.candidate.spec)
    # `Text`, never markup: a model's name may contain square brackets.
    title = Text(" against ".join(wording.one_line(name, 60) for name in reversed(names)))
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=Text(judgement.verdict(evaluation)),
        caption_justify="left",
        caption_style="",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    table.add_column("Measurement", no_wrap=True)
    table.add_column("Reference", justify="right")
    table.add_column("Compressed", justify="right")
    table.add_column("Change")
    for row in summary_rows(evaluation):
        change = Text(row.change, style=_STYLES[row.trend])
        table.add_row(Text(row.label), Text(row.reference), Text(row.candidate), change)
    return table
