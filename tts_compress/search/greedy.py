"""Choices to begin a search with: the best saving for the damage, from FP32 or the baseline on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf, sqrt
from random import Random

from tts_compress.search.formats import FLOAT32
from tts_compress.search.outcome import Row, Sensitivity

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
        option = (row.format, _saved(row, by_time=by_time), _power(row, limits))
        options.setdefault(row.group, []).append(option)
    current = dict.fromkeys(options, (FLOAT32, 0.0, 0.0))
    path = [dict.fromkeys(options, FLOAT32)]
    powers = [0.0]
    while (step := _best_step(options, current)) is not None:
        group, option = step
        current[group] = option
        path.append({name: chosen[0] for name, chosen in current.items()})
        powers.append(sum(chosen[2] for chosen in current.values()))
    return _along(path, [sqrt(power) for power in powers])


_SPARES = (0.0, 0.15, 0.3)
"""Shares of the present damage, as its square, that exchanges are predicted to spare: predictions
are not exact."""


@dataclass(frozen=True, slots=True)
class _Move:
    """Another format of a group, with the changes that it makes."""

    group: str
    form: str
    cost: float
    power: float


def exchanges(
    found: Sensitivity,
    current: Mapping[str, str],
    *,
    by_time: bool,
    limits: tuple[float, float],
) -> list[dict[str, str]]:
    """Return changes of a choice that are predicted to cost less and to do no more damage.

    Some groups get a cheaper format, and others a gentler one, until the damage is made up for.
    Between like choices predictions err less than from FP32 on.

    Args:
        found: What each group alone does and saves.
        current: The format of each group.
        by_time: Save milliseconds; else bytes.
        limits: As for `greedy_choices`.

    Returns:
        The formats of the groups that change, of each choice; the cheapest first, with more and
        less to spare in turn.
    """
    moves = _moves(found, current, by_time=by_time, limits=limits)
    cheaper = sorted((m for m in moves if m.cost < 0), key=lambda m: m.power / -m.cost)
    gentler = sorted((m for m in moves if m.power < 0), key=lambda m: m.cost / -m.power)
    first = [[move] for move in cheaper]
    first += [_one_each(cheaper[:count]) for count in range(2, len(cheaper) + 1)]
    present = sum(_power(row, limits) for row in found.rows if current.get(row.group) == row.format)
    rows = [
        _cheapest([_made_up_for(some, gentler, spare * present) for some in first])
        for spare in _SPARES
    ]
    in_turn = [change for several in zip_longest(*rows) for change in several if change is not None]
    return [dict(change) for change in dict.fromkeys(in_turn)]


def _cheapest(changes: Sequence[Sequence[_Move]]) -> list[tuple[tuple[str, str], ...]]:
    """Return groups and formats of the changes that lower the cost, the cheapest first."""
    made = {
        tuple(sorted((move.group, move.form) for move in change)): sum(m.cost for m in change)
        for change in changes
    }
    return sorted((key for key, cost in made.items() if cost < 0), key=lambda key: (made[key], key))


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


def _moves(
    found: Sensitivity,
    current: Mapping[str, str],
    *,
    by_time: bool,
    limits: tuple[float, float],
) -> list[_Move]:
    known = {
        (row.group, row.format): (_saved(row, by_time=by_time), _power(row, limits))
        for row in found.rows
    }
    for group in current:
        known.setdefault((group, FLOAT32), (0.0, 0.0))
    moves = []
    for (group, form), (saved, power) in known.items():
        # A format that was left out does what another one did already: nothing is known of it.
        before = known.get((group, current.get(group, FLOAT32)))
        if before is not None and form != current.get(group, FLOAT32):
            moves.append(_Move(group, form, before[0] - saved, power - before[1]))
    return moves


def _one_each(moves: Sequence[_Move]) -> list[_Move]:
    """Return the first move of each group."""
    first: dict[str, _Move] = {}
    for move in moves:
        first.setdefault(move.group, move)
    return list(first.values())


def _made_up_for(cheaper: Sequence[_Move], gentler: Sequence[_Move], spare: float) -> list[_Move]:
    """Return moves with as many gentler ones as their damage takes; none where that is too much.

    Args:
        cheaper: Moves that save.
        gentler: Moves that spare damage, those that cost least for it first.
        spare: Damage, as its square, that they spare beyond what the others add.
    """
    change = list(cheaper)
    for move in gentler:
        if sum(one.power for one in change) <= -spare:
            break
        if move.group not in {one.group for one in change}:
            change.append(move)
    return change if sum(one.power for one in change) <= -spare else []


def _saved(row: Row, *, by_time: bool) -> float:
    return row.saved_ms if by_time else float(row.saved_bytes)


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
