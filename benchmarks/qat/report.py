"""The results as JSON, as a table and as curves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.plot import open_pyplot
from tts_compress.artifact import write_text_atomically
from tts_compress.environment import describe_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The distance of one contestant from FP32."""

    name: str
    bits: int
    distance_db: float
    """Mean log-mel distance on the clips that are held out."""

    options: dict[str, Any] | None
    """Options of the training; None where there was none."""

    curve: tuple[tuple[int, float], ...]
    """The loss on held-out pieces by update."""

    time_ratio: float | None = None
    """The time it takes, over that of the same one without training; None of what is that."""


def write_report(found: Sequence[Found], clips: int, command: str, stem: Path) -> list[Path]:
    """Write `<stem>.json`, `<stem>.md` and `<stem>.svg`.

    Args:
        found: Contestants.
        clips: Number of held-out clips.
        command: The command line that measured them.
        stem: Path of the files without their suffixes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "environment": describe_environment(),
        "held_out_clips": clips,
        "contestants": [asdict(row) for row in found],
    }
    paths = [stem.with_suffix(suffix) for suffix in (".json", ".md", ".svg")]
    write_text_atomically(paths[0], json.dumps(document, indent=2) + "\n")
    write_text_atomically(paths[1], _markdown(found, clips, command))
    _draw([row for row in found if row.curve], paths[2])
    return paths


def _markdown(found: Sequence[Found], clips: int, command: str) -> str:
    by_name = {row.name: row.distance_db for row in found}
    lines = [
        "# HiFi-GAN V2, trained without data",
        "",
        f"Mean log-mel distance to FP32 on {clips} recordings that nothing was calibrated on or "
        "trained on.",
        "",
        "| | bits of weights | dB | updates | time, untrained = 1 |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        steps = row.options["steps"] if row.options else ""
        time = "" if row.time_ratio is None else f"{row.time_ratio:.2f}"
        lines.append(f"| `{row.name}` | {row.bits} | {row.distance_db:.3f} | {steps} | {time} |")
    lines.append("")
    if {"min-max", "int8-qat"} <= by_name.keys():
        share = 1 - by_name["int8-qat"] / by_name["min-max"]
        lines.append(f"`int8-qat` recovers {share:.0%} of what plain min-max INT8 loses.")
    if {"min-max", "min-max-qat"} <= by_name.keys():
        share = 1 - by_name["min-max-qat"] / by_name["min-max"]
        lines.append(f"With the very same operators in integers, training recovers {share:.0%}.")
    if {"int4-weight-only", "int4-weight-only-qat"} <= by_name.keys():
        share = by_name["int4-weight-only-qat"] / by_name["int4-weight-only"]
        lines.append(f"With four bits for each weight, {share:.0%} of the distance is left.")
    lines += ["", f"Made by `{command}`.", ""]
    return "\n".join(lines)


def _draw(found: Sequence[Found], path: Path) -> None:
    pyplot = open_pyplot()
    figure, panel = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for row in found:
        steps, losses = zip(*row.curve, strict=True)
        panel.plot(steps, [loss / losses[0] for loss in losses], marker="o", label=row.name)
    panel.set_xlabel("updates")
    panel.set_ylabel("held-out loss over that without training")
    panel.set_ylim(bottom=0)
    panel.spines[["top", "right"]].set_visible(False)
    if found:
        panel.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
