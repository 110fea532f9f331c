"""False alarms and power of each size of a suite, as JSON and as tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.power.simulate import (
    KINDS,
    RATES,
    Intervals,
    Kind,
    Plan,
    false_alarms,
    rate_found,
    share_found,
)
from tts_compress.artifact import write_text_atomically
from tts_compress.evaluation.bootstrap import paired_intervals
from tts_compress.evaluation.plan import WordErrors
from tts_compress.progress import Progress, Silent

ALARMS = (0.025, 0.075)
"""Accepted shares of false alarms of a 95 % interval."""

POWERS = (0.5, 0.8, 0.9)

_MORE_ALARMS = 4
"""Comparisons without damage, over those with: a share of 5 % needs more to be told from 7.5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One size of a suite; `power` and `rates` by the kind of damage."""

    texts: int
    seeds: int
    alarms: Mapping[str, float | None]
    power: Mapping[Kind, Mapping[float, float]]
    """Share found of each planted rate."""

    rates: Mapping[Kind, Mapping[float, float | None]]
    """Rate that is found with each power; None beyond the planted rates."""

    approximation: float
    """Difference that is found with 80 % power by the normal approximation of `--plan`."""

    @property
    def holds(self) -> bool:
        """True if the false alarms are within the limits."""
        shares = [share for share in self.alarms.values() if share is not None]
        return all(ALARMS[0] <= share <= ALARMS[1] for share in shares)


def simulate(
    data: WordErrors,
    texts: Sequence[int],
    seeds: Sequence[int],
    comparisons: int,
    *,
    intervals: Intervals = paired_intervals,
    progress: Progress | None = None,
) -> list[Found]:
    """Return false alarms and power of every size that the data have seeds for."""
    progress = progress or Silent()
    spread = data.spread()
    sizes = [
        Plan(count, number, comparisons)
        for number in seeds
        for count in texts
        if number <= len(data.candidate.seeds) and count <= len(data.words)
    ]
    found = []
    for place, plan in enumerate(sizes):
        progress.advance("simulate", place, len(sizes))
        power = {
            kind: {rate: share_found(data, plan, kind, rate, intervals) for rate in RATES}
            for kind in KINDS
        }
        quiet = Plan(plan.texts, plan.seeds, _MORE_ALARMS * comparisons)
        found.append(
            Found(
                texts=plan.texts,
                seeds=plan.seeds,
                alarms=false_alarms(data, quiet, intervals),
                power=power,
                rates={
                    kind: {share: rate_found({0.0: 0.025} | shares, share) for share in POWERS}
                    for kind, shares in power.items()
                },
                approximation=spread.detectable(plan.texts, plan.seeds),
            )
        )
    progress.advance("simulate", len(sizes), len(sizes))
    return found


def write_report(
    found: Sequence[Found], data: WordErrors, command: str, stem: Path
) -> tuple[Path, Path]:
    """Write `<stem>.json` and `<stem>.md`; neither depends on the machine.

    Args:
        found: Results by size.
        data: What they were drawn from.
        command: The command line.
        stem: Path of the files without their suffixes.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = (stem.with_suffix(".json"), stem.with_suffix(".md"))
    source = data.model_dump(mode="json", exclude={"words": True})
    for model in ("reference", "candidate"):
        del source[model]["errors"]
    document = {"command": command, "source": source, "sizes": [asdict(row) for row in found]}
    write_text_atomically(paths[0], json.dumps(document, indent=2) + "\n")
    write_text_atomically(paths[1], _markdown(found, data, command))
    return paths


def _markdown(found: Sequence[Found], data: WordErrors, command: str) -> str:
    low, high = (f"{100 * limit:g}" for limit in ALARMS)
    lines = [
        "# What an evaluation can show",
        "",
        f"Word errors of `{data.reference.spec}` (seeds {_list(data.reference.seeds)}) and "
        f"`{data.candidate.spec}` (seeds {_list(data.candidate.seeds)}) on {len(data.words)} texts "
        f"of `{data.suite}`, heard by {data.recognizer}: `eval/reports/word-errors.json`. "
        "Comparisons are drawn from them, and judged by the interval of the reports.",
        "",
        "## False alarms",
        "",
        "Share of 95 % intervals without zero where nothing changed: the reference against itself "
        "with other seeds, and differences whose signs are drawn at random. "
        f"Accepted: {low} to {high} %.",
        "",
        "| seeds | texts | other seeds | sign flips |",
        "| --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row.seeds} | {row.texts} | {_share(row.alarms['other seeds'])} | "
        f"{_share(row.alarms['sign flips'])} |"
        for row in found
    ]
    if any(share is None for row in found for share in row.alarms.values()):
        lines += ["", "\N{EN DASH}: not as many seeds were measured."]
    lines += ["", "## Damage found", ""]
    lines += [
        "Word errors are added to the candidate's, by word (each word with the same chance) or "
        "clustered (few utterances, each with as many errors as misheard ones have). Share of "
        "comparisons whose whole interval is above zero:",
        "",
        f"| seeds | texts | damage | {' | '.join(f'+{100 * r:g} points' for r in RATES)} |",
        f"| --: | --: | :-- |{' --: |' * len(RATES)}",
    ]
    lines += [
        f"| {row.seeds} | {row.texts} | {kind} | "
        f"{' | '.join(f'{100 * share:.0f} %' for share in row.power[kind].values())} |"
        for row in found
        for kind in KINDS
    ]
    lines += ["", "## The smallest difference that is found", ""]
    lines += [
        "In points of the word error rate, between the planted rates. The last column is what "
        "`tts-compress evaluate --plan` computes from the spread of the differences, for clustered "
        "errors; of few texts it asks too much.",
        "",
        "| seeds | texts | damage | 50 % power | 80 % power | 90 % power | approximated, 80 % |",
        "| --: | --: | :-- | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row.seeds} | {row.texts} | {kind} | "
        f"{' | '.join(_points(rate) for rate in row.rates[kind].values())} | "
        f"{_points(row.approximation)} |"
        for row in found
        for kind in KINDS
    ]
    lines += ["", f"Made by `{command}` (`make prove`).", ""]
    return "\n".join(lines)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _share(share: float | None) -> str:
    return "\N{EN DASH}" if share is None else f"{100 * share:.1f} %"


def _points(rate: float | None) -> str:
    return f"> {100 * RATES[-1]:g}" if rate is None else f"{100 * rate:.1f}"
