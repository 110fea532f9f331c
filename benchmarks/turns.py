"""Timing what runs in this process: in turns, because what disturbs one then disturbs all."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def take_turns(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_ups: int = 3,
    tell: Callable[[int, int], None] | None = None,
) -> dict[str, list[float]]:
    """Return the milliseconds of every timed run, by name.

    Args:
        runs: The functions to time.
        rounds: How often each one is timed.
        warm_ups: Rounds before, which do not count.
        tell: Called after each round with the number done and the total.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warm_ups + rounds):
        for name, run in runs.items():
            start = perf_counter()
            run()
            passed = (perf_counter() - start) * 1e3
            if turn >= warm_ups:
                times[name].append(passed)
        if tell is not None:
            tell(turn + 1, warm_ups + rounds)
    return times
