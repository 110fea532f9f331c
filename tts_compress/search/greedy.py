"""Choices to begin a search with: the best saving for the damage, one step after the other."""

from collections.abc import Mapping, Sequence
from math import inf, sqrt
from random import Random

from tts_compress.search.formats import FLOAT32
from tts_compress.search.result import Row, Sensitivity

_LEVELS = (0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
"""Predicted damage of the choices, in shares of what is admitted."""


def greedy_choices(
    found: Sensitivity, *, by_time: bool, limits: tuple[float, float]
) -> list[dict[str, str]]:
    """Return choices along the path from FP32 to the smallest or fastest form, cheapest first.

    Each step gives one group the format with the largest saving for the damage that it adds.
    Damages of groups are independent: their squares add up.

    Args:
        found: What each group alone does and saves.
        by_time: Save milliseconds; else bytes.
        limits: Log-mel distance and change of durations that are admitted.
    """
    options: dict[str, list[tuple[str, float, float]]] = {}
    for row in found.rows:
        saved = row.saved_ms if by_time else float(row.saved_bytes)
        options.setdefault(row.group, []).append((row.format, saved, _power(row, limits)))
    current = dict.fromkeys(options, (FLOAT32, 0.0, 0.0))
    path = [dict.fromkeys(options, FLOAT32)]
    powers = [0.0]
    while (step := _best_step(options, current)) is not None:
        group, option = step
        current[group] = option
        path.append({name: chosen[0] for name, chosen in current.items()})
        powers.append(sum(chosen[2] for chosen in current.values()))
    return _along(path, [sqrt(power) for power in powers])


def neighbours(
    choices: Sequence[Mapping[str, str]],
    names: Mapping[str, Sequence[str]],
    count: int,
    seed: int,
) -> list[dict[str, str]]:
    """Return choices with two groups changed at random, to fill a population with.

    Args:
        choices: To begin with, in turn.
        names: What each group can be given.
        count: Number of choices returned.
        seed: Of the chance.
    """
    random = Random(seed)  # noqa: S311 - no secret depends on it
    found = []
    for number in range(count if choices else 0):
        changed = dict(choices[number % len(choices)])
        for group in random.sample(sorted(names), min(2, len(names))):
            changed[group] = random.choice(list(names[group]))
        found.append(changed)
    return found


def _power(row: Row, limits: tuple[float, float]) -> float:
    """Return the square of a damage in shares of the limits."""
    parts = (row.damage.log_mel_db, row.damage.duration_frames)
    return sum((part / limit) ** 2 for part, limit in zip(parts, limits, strict=True) if limit > 0)


def _best_step(
    options: dict[str, list[tuple[str, float, float]]],
    current: dict[str, tuple[str, float, float]],
) -> tuple[str, tuple[str, float, float]] | None:
    best, found = -inf, None
    for group, forms in options.items():
        _, saved, power = current[group]
        for option in forms:
            gain = option[1] - saved
            if gain <= 0.0:
                continue
            rate = gain / max(option[2] - power, 1e-12)
            if rate > best:
                best, found = rate, (group, option)
    return found


def _along(path: Sequence[dict[str, str]], shares: Sequence[float]) -> list[dict[str, str]]:
    """Return the last choice of the path below each level, and its end; each once."""
    places = [max(i for i, share in enumerate(shares) if share <= level) for level in _LEVELS]
    kept = dict.fromkeys([place for place in (*places, len(path) - 1) if place > 0])
    return [path[place] for place in sorted(kept, reverse=True)]
