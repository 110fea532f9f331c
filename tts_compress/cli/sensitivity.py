"""`tts-compress sensitivity`: what each layer costs and saves in each format."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import MODEL, Output, explain, path
from tts_compress.errors import ArtifactError

if TYPE_CHECKING:
    from rich.table import Table

    from tts_compress.search.outcome import Sensitivity

_SHOWN = 15
"""Lines in the terminal; the page has all."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    explain(
        parser,
        "sensitivity demo --output out/sensitivity",
        "sensitivity voice.onnx --groups 'dec.ups.*' 'flow.*' --formats int8 --output out/s",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument(
        "--output", type=path, required=True, metavar="DIR", help="for document and page; a run "
        "into it that was interrupted goes on"
    )  # fmt: skip
    parser.add_argument(
        "--formats", nargs="+", metavar="FORMAT", default=[], help="such as 'int8 static' float16 "
        "(those of the family's recipes that a CPU gains by)"
    )  # fmt: skip
    add_groups(parser)
    parser.add_argument(
        "--all", action="store_true", help="measure also what is negligible by its estimate"
    )
    parser.add_argument(
        "--texts", type=int, default=8, help="short texts of the calibration set (%(default)s)"
    )
    parser.add_argument(
        "--calibration", metavar="SET", help="a calibration set's name or TOML (the recipe's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the noise (%(default)s)")
    parser.add_argument("--force", action="store_true", help="replace an existing result")


def add_groups(parser: ArgumentParser) -> None:
    """Add the options that say which layers are one."""
    parser.add_argument(
        "--groups", nargs="+", metavar="PATTERN", default=[], help="layers that get one format, by "
        "their dotted names; the rest is grouped up to the first number of its names"
    )  # fmt: skip
    parser.add_argument(
        "--layers", action="store_true", help="every layer that no pattern names for itself"
    )


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.terminal import progress_bars

    if (options.output / "sensitivity.json").exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a result; use --force to replace it (what was measured is "
            "used again), or another output"
        )
    with progress_bars() as progress:
        progress.advance("prepare", 0, 3)
        from tts_compress.search.sensitivity import SensitivityOptions, find_sensitivity
        from tts_compress.search.writing import write_result

        chosen = SensitivityOptions(
            formats=tuple(options.formats),
            groups=tuple(options.groups),
            each_layer=options.layers,
            everything=options.all,
            texts=options.texts,
            calibration=options.calibration,
            seed=options.seed,
            progress=progress,
        )
        found = find_sensitivity(options.model, options.output, chosen)
    page = write_result(found, options.output)
    return Output(found.model_dump(mode="json"), [_table(found), f"page: {page}"])


def _table(found: Sensitivity) -> Table:
    """Return the most audible parts."""
    from rich.table import Table

    labels = ("part", "format", "log-mel dB", "durations, frames", "saves kB", "saves ms")
    table = Table(*labels, title=f"{min(_SHOWN, len(found.rows))} of {len(found.rows)}")
    for row in found.rows[:_SHOWN]:
        damage = row.damage
        values = (f"{damage.log_mel_db:.4f}", f"{damage.duration_frames:.4f}")
        saved = (f"{row.saved_bytes / 1000:.1f}", f"{row.saved_ms:.2f}")
        table.add_row(row.group, row.format, *values, *saved)
    return table
