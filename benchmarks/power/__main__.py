"""`python -m benchmarks.power`: false alarms and power of each size of a suite, as tables."""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.command import Add, command
from benchmarks.power import rare
from benchmarks.power.errors import SHIPPED, WordErrors, read_word_errors
from benchmarks.power.simulate import (
    KINDS,
    LIMITS,
    RATES,
    Kind,
    Plan,
    false_alarms,
    rate_found,
    share_found,
    within_limits,
)
from benchmarks.report import render, share, write_report
from benchmarks.sound.analysis import read_values
from tts_compress.config import data_names
from tts_compress.evaluation.gates import read_gates
from tts_compress.progress import Progress, Silent
from tts_compress.terminal import progress_bars, show

POWERS = (0.5, 0.8, 0.9)

_MORE_ALARMS = 4
"""Comparisons without damage, over those with: a share of 5 % needs more to be told from 7.5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a suite; `power` and `rates` by the kind of damage."""

    texts: int
    seeds: int
    alarms: Mapping[str, float | None]
    power: Mapping[Kind, Mapping[float, float]]
    """Share of comparisons that show each planted rate."""

    rates: Mapping[Kind, Mapping[float, float | None]]
    """Rate that is shown with each power; None beyond the planted rates."""

    approximation: float
    """Difference that is shown with 80 % power by the normal approximation of `--plan`."""

    @property
    def holds(self) -> bool:
        """True if the false alarms are within the limits."""
        return within_limits(share for share in self.alarms.values() if share is not None)


def simulate(
    data: WordErrors,
    texts: Sequence[int],
    seeds: Sequence[int],
    comparisons: int,
    progress: Progress | None = None,
) -> list[Size]:
    """Return false alarms and power of every size that the data have seeds for."""
    plans = [
        Plan(count, number, comparisons)
        for number, count in product(seeds, texts)
        if number <= len(data.candidate.seeds) and count <= len(data.words)
    ]
    sizes = []
    for done, plan in enumerate(plans, 1):
        power = {
            kind: {rate: share_found(data, plan, kind, rate) for rate in RATES} for kind in KINDS
        }
        rates = {
            kind: {part: rate_found({0.0: 0.025} | shares, part) for part in POWERS}
            for kind, shares in power.items()
        }
        quiet = Plan(plan.texts, plan.seeds, _MORE_ALARMS * comparisons)
        size = Size(
            texts=plan.texts,
            seeds=plan.seeds,
            alarms=false_alarms(data, quiet),
            power=power,
            rates=rates,
            approximation=data.spread().detectable(plan.texts, plan.seeds),
        )
        sizes.append(size)
        (progress or Silent()).advance("simulate", done, len(plans))
    return sizes


def _line(row: Size) -> str:
    alarms = ", ".join(f"{name} {share(part)}" for name, part in row.alarms.items())
    end = "" if row.holds else " (not within the limits)"
    return f"{row.texts} texts, {row.seeds} seeds: false alarms {alarms}{end}"


def _points(rate: float | None) -> str:
    return f"> {100 * RATES[-1]:g}" if rate is None else f"{100 * rate:.1f}"


def _options(add: Add) -> None:
    add("--errors", type=Path, default=SHIPPED, metavar="JSON", help="measured errors")
    add("--texts", type=int, nargs="+", default=[24, 50, 100, 200], help="(24 50 100 200)")
    measured = "of each text, as far as measured (1 2 3)"
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], help=measured)
    add("--comparisons", type=int, default=1000, help="drawn for each share (%(default)s)")
    stem = Path("eval/reports/power")
    add("--report", type=Path, default=stem, metavar="STEM", help="of .json and .md (%(default)s)")


@command("benchmarks.power", _options, label="prove")
def main(options: Namespace) -> int:
    """False alarms of the word error rate's interval, and the damage that it shows."""
    data = read_word_errors(options.errors)
    with progress_bars() as progress:
        sizes = simulate(data, options.texts, options.seeds, options.comparisons, progress)
        shipped, sound = [read_gates(name) for name in data_names("eval/gates")], read_values()
        missed = [row for plan in rare.PLANS for row in rare.misses(data, plan)]
        passed = [row for plan in rare.PLANS for row in rare.passing(data, sound, plan, shipped)]
        rates = [rare.rate_misses(*size) for size in rare.RATE_SIZES]
    losses = {"misses": missed, "gates": passed, "rates": rates}
    demanded = [row["bound"] for row in missed if row["demanded"]]
    show(*map(_line, sizes), f"bounds below a rare loss: at most {share(max(demanded))}")
    command = (
        f"python -m benchmarks.power --comparisons {options.comparisons} "
        f"--texts {' '.join(map(str, options.texts))} --seeds {' '.join(map(str, options.seeds))}"
    )
    source = data.model_dump(mode="json", exclude={"words": True})
    for model in ("reference", "candidate"):
        del source[model]["errors"]
    # Neither file depends on the machine.
    document: dict[str, Any] = {
        "command": command,
        "source": source,
        "sizes": [asdict(row) for row in sizes],
    }
    document |= losses
    values = {"data": data, "sizes": sizes, "rare": losses, "command": command}
    values |= {"rates": RATES, "limits": LIMITS, "most": rare.MISSES}
    lines = render(Path(__file__).with_name("report.md"), values, {"points": _points})
    show(*(f"written: {path}" for path in write_report(options.report, document, lines)))
    within = max(demanded) <= rare.MISSES and all(row.holds for row in sizes)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
