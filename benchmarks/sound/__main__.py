"""`python -m benchmarks.sound`: its options and its tables."""

import sys
from argparse import Namespace
from pathlib import Path

from benchmarks.command import Add, command
from benchmarks.power.simulate import LIMITS, within_limits
from benchmarks.report import MISSING, render
from benchmarks.sound.analysis import DISTORTION, SHIPPED, Finding, Plan, analyse, read_values
from tts_compress.artifact import write_text_atomically
from tts_compress.terminal import progress_bars, show


def _cell(found: Finding | None, value: str) -> str:
    if found is None:
        return MISSING
    shares = " / ".join(f"{100 * share:.0f}" for share in found.power.values())
    return {"delta": f"{found.delta:+.3f}", "t": f"{found.t:+.1f}", "power": shares}[value]


def _options(add: Add) -> None:
    add("--values", type=Path, default=SHIPPED, metavar="JSON")
    add("--report", type=Path, default=SHIPPED.with_name("sound.md"), metavar="MD")
    add("--texts", type=int, nargs="+", default=[24, 100, 200], help="(24 100 200)")
    add("--comparisons", type=int, default=1000, help="without damage (%(default)s)")


@command("benchmarks.sound", _options, label="prove")
def main(options: Namespace) -> int:
    """Damage to the demo voice that is smaller than words show, and the measures of it."""
    plan = Plan(texts=tuple(options.texts), alarms=options.comparisons)
    values = read_values(options.values)
    names = [DISTORTION, *values.reference]
    results = {}
    with progress_bars() as progress:
        for done, name in enumerate(names, 1):
            results[name] = analyse(values, name, plan)
            progress.advance("simulate", done, len(names))
    found, alarms = results[DISTORTION].findings, results[DISTORTION].alarms
    command = f"python -m benchmarks.sound --comparisons {plan.alarms}"
    shown = {"values": values, "results": results, "texts": plan.texts, "limits": LIMITS}
    shown |= {"names": sorted(found, key=lambda name: abs(found[name].delta))}
    shown |= {"kinds": [*alarms], "command": command}
    lines = render(Path(__file__).with_name("report.md"), shown, {"cell": _cell})
    write_text_atomically(options.report, "\n".join([*lines, ""]))
    show(f"written: {options.report}")
    return 0 if within_limits(share for kind in alarms.values() for share in kind.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
