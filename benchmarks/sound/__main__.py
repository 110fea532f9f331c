"""`python -m benchmarks.sound`: its options and its tables."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.command import Add, command
from benchmarks.power.simulate import LIMITS, within_limits
from benchmarks.report import MISSING, table
from benchmarks.sound.analysis import (
    DISTORTION,
    Finding,
    Measured,
    Plan,
    Values,
    analyse,
    read_values,
)
from tts_compress.artifact import write_text_atomically
from tts_compress.environment import describe_environment
from tts_compress.terminal import progress_bars, show


def _machine() -> str:
    facts = describe_environment()
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return f"{facts['processor']['model']}, one thread, Python {facts['python']}, {packages}"


def _markdown(results: Mapping[str, Measured], values: Values) -> list[str]:
    order = results[DISTORTION].findings
    names = sorted(order, key=lambda name: abs(order[name].delta))

    def findings(show: Callable[[Finding], str]) -> list[str]:
        def row(name: str) -> list[str]:
            cells = (one.findings.get(name) for one in results.values())
            return [name, *(MISSING if cell is None else show(cell) for cell in cells)]

        return ["", *table(("candidate", *results), map(row, names)), ""]

    alarms = results[DISTORTION].alarms
    texts = [*map(str, alarms["sign flips"])]
    kinds = [f"{kind}, {size} texts" for kind in alarms for size in texts]
    return [
        "# Damage that words do not show",
        "",
        f"Candidates made from the demo voice speak `{values.suite}` ({len(values.takes)} texts, "
        f"seeds {', '.join(map(str, values.seeds))}). Rows are ordered by `distortion`, which is "
        "in shares of what mu-law adds; word errors are shares of words, opinion scores points, "
        "all else decibels.",
        "",
        "## Candidate minus reference",
        *findings(lambda one: f"{one.delta:+.3f}"),
        "## The same in standard errors",
        *findings(lambda one: f"{one.t:+.1f}"),
        f"## Share of comparisons that find it, with {', '.join(texts)} texts",
        *findings(lambda one: " / ".join(f"{100 * share:.0f}" for share in one.power.values())),
        f"In %; texts are drawn with replacement. {MISSING}: not measured.",
        "",
        "## False alarms",
        "",
        "Share of 95 % intervals without zero where nothing changed: renderings of the reference "
        f"dealt to both sides, and random signs. Accepted: {LIMITS} %.",
        "",
        *table(
            ("measure", *kinds),
            ([name, *_alarms(one, texts)] for name, one in results.items()),
        ),
        "",
        f"Measured on {values.machine}; `sound-values.json`.",
        "",
    ]


def _alarms(measured: Measured, texts: list[str]) -> list[str]:
    shares = [kind.get(int(size)) for kind in measured.alarms.values() for size in texts]
    return [MISSING if share is None else f"{100 * share:.1f} %" for share in shares]


def _options(add: Add) -> None:
    folder = Path("eval/reports")
    add("--values", type=Path, default=folder / "sound-values.json", metavar="JSON")
    add("--report", type=Path, default=folder / "sound.md", metavar="MD")
    add("--texts", type=int, nargs="+", default=[24, 100, 200], help="(24 100 200)")
    add("--comparisons", type=int, default=1000, help="without damage (%(default)s)")
    first = "first measure candidates that --values lacks, for an hour or so; needs `listen`"
    add("--measure", action="store_true", help=first)
    add("--suite", default="en-quick", help="to measure on (%(default)s)")


@command("benchmarks.sound", _options, label="prove")
def main(options: Namespace) -> int:
    """Damage to the demo voice that is smaller than words show, and the measures of it."""
    plan = Plan(texts=tuple(options.texts), alarms=options.comparisons)
    with progress_bars() as progress:
        if options.measure:
            # Speaking needs more packages than the tables do.
            from benchmarks.sound.measure import measure
            from benchmarks.sound.plant import NAMES

            measure(NAMES, options.suite, _machine(), options.values, progress)
        values = read_values(options.values)
        names = [DISTORTION, *values.reference]
        results = {}
        for index, name in enumerate(names):
            progress.advance("simulate", index, len(names))
            results[name] = analyse(values, name, plan)
    lines = _markdown(results, values)
    command = f"python -m benchmarks.sound --comparisons {plan.alarms}"
    lines += [f"Made by `{command}` (`make prove`).", ""]
    write_text_atomically(options.report, "\n".join(lines))
    show(f"written: {options.report}")
    alarms = results[DISTORTION].alarms.values()
    return 0 if within_limits(share for kind in alarms for share in kind.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
