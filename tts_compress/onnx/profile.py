"""The time that each operator of a graph takes, by onnxruntime's own profile."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from tts_compress.folders import temporary_folder
from tts_compress.onnx.modules import name_by_modules
from tts_compress.onnx.noise import NOISE_PREFIX, feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session

_ROUNDS = 3
"""Profiled runs; the fastest counts."""


def kernel_seconds(
    model: onnx.ModelProto,
    calls: Sequence[Feeds],
    spec: str,
    *,
    threads: int | None = None,
    rounds: int = 1,
) -> dict[str, float]:
    """Return the seconds that operators take over all calls, by names that hold their modules.

    Args:
        model: The graph; its noise is fed.
        calls: Inputs, with fed noise.
        spec: Its name in messages.
        threads: Threads within an operator; None leaves it to the runtime.
        rounds: Times that all calls are run after a first time that does not count; for each
            operator in each call the fastest counts.
    """
    watched = feed_noise(model)
    name_by_modules(watched.graph)
    with temporary_folder() as folder:
        options: dict[str, Any] = {"profile_file_prefix": str(Path(folder, "profile"))}
        session = open_session(watched, spec, threads, enable_profiling=True, **options)
        for call in [*calls] * (1 + rounds):
            run_session(session, call, spec)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return _by_operator(events, len(calls))


def _by_operator(events: list[dict[str, Any]], calls: int) -> dict[str, float]:
    """Return the seconds of the kernels of a profile, without those of the first calls."""
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    spent: dict[tuple[str, int], float] = defaultdict(float)  # by operator and run
    for event in events:
        operator = event["name"].removesuffix("_kernel_time")
        run = bisect_right(starts, event["ts"]) - 1
        # Operators that feed noise stand for one operator of the voice that draws it.
        fed = operator.startswith(NOISE_PREFIX)
        if operator != event["name"] and run >= calls and not fed:
            spent[operator, run] += event["dur"] / 1e6
    fastest: dict[str, dict[int, float]] = defaultdict(dict)
    for (operator, run), seconds in spent.items():
        call = run % calls
        fastest[operator][call] = min(seconds, fastest[operator].get(call, seconds))
    return {operator: sum(seconds.values()) for operator, seconds in fastest.items()}


def group_ms(
    model: onnx.ModelProto, calls: Sequence[Feeds], groups: Sequence[str]
) -> dict[str, float]:
    """Return milliseconds of kernels on one thread by group, and of others under an empty name.

    Args:
        model: The graph; its noise is fed.
        calls: Inputs, with fed noise.
        groups: Names of groups of modules, as `find_groups` gives them.
    """
    spent = dict.fromkeys([*groups, ""], 0.0)
    kernels = kernel_seconds(model, calls, "the graph", threads=1, rounds=_ROUNDS)
    for operator, seconds in kernels.items():
        spent[group_of(operator, groups)] += seconds * 1e3
    return spent


def group_of(operator: str, groups: Sequence[str]) -> str:
    """Return the group that an operator belongs to by its name; empty where there is none.

    Names hold the module, as `/dec/ups.0/ConvTranspose` or `dec.ups.0.weight.dequantized`; the
    longest group's name in it counts.
    """
    dotted = f".{operator.replace('/', '.')}.".replace("..", ".")
    holding = (group for group in groups if f".{group.rstrip('.*')}." in dotted)
    return max(holding, key=len, default="")
