"""Time equivalent kernels on this processor into a target file: ``python -m benchmarks.kernels``.

Every alternative of every choice is emitted by the library itself into small graphs of the shapes
that voices have. They run in turns, on one thread, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.kernel_graphs import CASES, Case
from benchmarks.torch_kernels import measure_torch
from benchmarks.turns import take_turns
from tts_compress.artifact import write_text_atomically
from tts_compress.environment import describe_environment
from tts_compress.errors import TTSCompressError
from tts_compress.models.onnx_session import open_session
from tts_compress.quantize.onnx.integer import IntegerPlan, emit_integer, observed_tensors
from tts_compress.targets import HOST, Choices, Figures, Machine, Target, find_target
from tts_compress.terminal import progress_bars, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx
    import onnxruntime

    from tts_compress.progress import Progress

__all__ = ["choose", "main", "measure", "to_toml"]

_WORTH = 1.03
"""How many times faster an alternative has to be to take the place of what is chosen now: figures
of two runs differ by a percent or two."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 is good, 2 is usage or bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--target", default=HOST, help="whose arithmetic is used (%(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="timed runs of each (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="TOML", help="to write")
    options = parser.parse_args(arguments)
    try:
        target = find_target(options.target)
        with progress_bars() as progress:
            figures = measure(target, max(options.rounds, 1), progress)
            figures += measure_torch(max(options.rounds, 1), progress)
        write_text_atomically(options.output, to_toml(_measured(target, figures, options.rounds)))
    except TTSCompressError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 2
    show(f"written: {options.output}")
    return 0


def measure(target: Target, rounds: int, progress: Progress) -> list[Figures]:
    """Return what every alternative took on every graph."""
    found = []
    for done, case in enumerate(CASES):
        progress.advance("kernels", done, len(CASES))
        sessions = {name: _open(case, name, target) for name in case.alternatives}
        feed = case.feed()
        runs = {name: partial(session.run, None, feed) for name, session in sessions.items()}
        us = {n: round(min(ms) * 1e3, 1) for n, ms in take_turns(runs, rounds=rounds).items()}
        found.append(Figures(choice=case.choice, shape=case.shape, us=us, channels=case.channels))
    progress.advance("kernels", len(CASES), len(CASES))
    return found


def choose(figures: Sequence[Figures], now: Choices) -> Choices:
    """Return the alternatives with the least geometric mean over their graphs.

    What is chosen now stays where nothing is clearly faster.
    """
    chosen: dict[str, Any] = now.model_dump()
    chosen["narrowest"] = _narrowest(figures, now.narrowest)
    for choice in {row.choice for row in figures} - {"narrowest"}:
        rows = [row.us for row in figures if row.choice == choice]
        means = {n: float(np.exp(np.mean([np.log(us[n]) for us in rows]))) for n in rows[0]}
        best, current = min(means, key=lambda n: means[n]), getattr(now, choice)
        chosen[choice] = best if means[current] > _WORTH * means[best] else current
    return Choices(**chosen)


def to_toml(target: Target) -> str:
    """Return a target file's text."""
    head = target.model_dump(exclude={"choices", "machine", "figures"}, exclude_none=True)
    lines = ["# Written by `python -m benchmarks.kernels`; times in microseconds."]
    lines += [f"{key} = {_value(value)}" for key, value in head.items()]
    lines += ["", "[choices]"]
    lines += [f"{key} = {_value(value)}" for key, value in target.choices.model_dump().items()]
    if target.machine is not None:
        lines += ["", "[machine]"]
        lines += [f"{key} = {_value(value)}" for key, value in target.machine.model_dump().items()]
    for row in target.figures:
        lines += ["", "[[figures]]"]
        lines += [f"{key} = {_value(value)}" for key, value in row.model_dump().items() if value]
    return "\n".join(lines) + "\n"


def _measured(target: Target, figures: Sequence[Figures], rounds: int) -> Target:
    environment = describe_environment()
    machine = Machine(
        processor=environment.processor.model,
        features=environment.processor.features,
        threads=1,
        rounds=rounds,
        packages={
            name: environment.packages[name]
            for name in ("onnxruntime", "numpy", "torch")
            if name in environment.packages
        },
        command=f"python -m benchmarks.kernels --rounds {rounds} --output {target.name}.toml",
    )
    changes = {
        "measured": True,
        "assumption": None,
        "choices": choose(figures, target.choices),
        "machine": machine,
        "figures": tuple(figures),
    }
    return target.model_copy(update=changes)


def _narrowest(figures: Sequence[Figures], now: int) -> int:
    """Return from how many channels on integers are always faster."""
    rows = sorted((r for r in figures if r.choice == "narrowest"), key=lambda row: -row.channels)
    found = now if not rows else rows[0].channels
    for row in rows:
        if row.us["integer"] > row.us["real"]:
            return found
        found = row.channels
    # Narrower than the narrowest that was tried is as good as that one.
    return 1 if rows else found


def _open(case: Case, alternative: str, target: Target) -> onnxruntime.InferenceSession:
    model, plan = case.model(), case.plan(alternative, target)
    if plan is not None:
        model = emit_integer(model, plan, _ranges(model, plan, case))
    return open_session(model, f"{case.choice} {alternative}", threads=1)


def _ranges(model: onnx.ModelProto, plan: IntegerPlan, case: Case) -> dict[str, Any]:
    names = observed_tensors(model, plan)
    values = open_session(case.tapped(names), "observed", threads=1).run(names, case.feed())
    return {n: (float(v.min()), float(v.max())) for n, v in zip(names, values, strict=True)}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        inside = (f"{_value(key)} = {_value(item)}" for key, item in value.items())
        return "{ " + ", ".join(inside) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)


if __name__ == "__main__":
    sys.exit(main())
