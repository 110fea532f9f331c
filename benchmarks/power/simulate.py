"""Comparisons drawn from measured word errors: some where nothing changed, some with damage.

A comparison takes texts without replacement. Nothing changed (A/A) in two ways: the reference
against itself with other seeds, drawn anew for each text; and candidate minus reference with a
random sign for each text, since what has no direction is as likely to add errors as to remove them.
Damage is added to the latter.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.power.errors import WordErrors
from tts_compress.evaluation.intervals import paired_intervals

Kind: TypeAlias = Literal["by word", "clustered"]

Integers: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]

Intervals: TypeAlias = Callable[[Numbers, Numbers], npt.NDArray[np.float64]]
"""Returns the intervals `[N, 2]` of differences and words `[N, B]`."""

KINDS: tuple[Kind, ...] = ("by word", "clustered")

RATES = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Planted damage: errors added for each word."""

ALARMS = (0.02, 0.075)
"""Accepted shares of false alarms of a 95 % interval. Of 24 texts with one seed few may differ, and
then no test has exactly 5 %: by signs, five have 6 % and four none below 12 %."""

LIMITS = " to ".join(f"{100 * limit:g}" for limit in ALARMS)

BATCH = 250
"""Comparisons whose resamples are held in memory at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of one comparison, and how many are drawn."""

    texts: int
    seeds: int
    comparisons: int


def other_seeds(
    data: WordErrors, plan: Plan, random: np.random.Generator
) -> tuple[Integers, Integers]:
    """Return differences and words `[N, B]` of the reference against itself with other seeds."""
    errors = np.array(data.reference.errors)
    if 2 * plan.seeds > errors.shape[1]:
        raise ValueError(f"{2 * plan.seeds} seeds of the reference are needed")
    chosen, words = _choose_texts(data, plan, random)
    rows = random.permuted(errors[chosen], axis=2)
    sums = (rows[..., : plan.seeds].sum(2), rows[..., plan.seeds : 2 * plan.seeds].sum(2))
    return sums[1] - sums[0], words


def sign_flips(
    data: WordErrors, plan: Plan, random: np.random.Generator
) -> tuple[Integers, Integers]:
    """Return differences and words `[N, B]` of the candidate, without direction."""
    differences = data.differences()
    if plan.seeds > differences.shape[1]:
        raise ValueError(f"{plan.seeds} seeds of the candidate are needed")
    chosen, words = _choose_texts(data, plan, random)
    rows = random.permuted(differences[chosen], axis=2)[..., : plan.seeds].sum(2)
    return rows * random.choice((-1, 1), rows.shape), words


def damage(
    kind: Kind, rate: float, data: WordErrors, words: Integers, random: np.random.Generator
) -> Integers:
    """Return errors to add to each utterance, at a rate by word.

    `by word` adds an error to each word with the same chance; `clustered` hits utterances at
    random, each with as many errors as a misheard one of the reference has.
    """
    if kind == "by word":
        return random.binomial(words, rate)
    sizes = np.array(data.reference.errors).ravel()
    sizes = sizes[sizes > 0]
    hit = random.random(words.shape) < np.minimum(1.0, rate * words / sizes.mean())
    return np.where(hit, random.choice(sizes, words.shape), 0)


def share_outside(
    differences: Numbers, words: Numbers, intervals: Intervals = paired_intervals
) -> tuple[float, float]:
    """Return the shares of comparisons whose interval lies above zero, and below it."""
    ends = [
        intervals(differences[start : start + BATCH], words[start : start + BATCH])
        for start in range(0, len(words), BATCH)
    ]
    low, high = np.concatenate(ends).T
    return float((low > 0).mean()), float((high < 0).mean())


def within_limits(shares: Iterable[float]) -> bool:
    """Return True if all shares of false alarms are accepted."""
    return all(ALARMS[0] <= share <= ALARMS[1] for share in shares)


def false_alarms(
    data: WordErrors, plan: Plan, intervals: Intervals = paired_intervals
) -> Mapping[str, float | None]:
    """Return the share of intervals without zero where nothing changed; None without the seeds."""
    shares: dict[str, float | None] = {}
    for name, draw in (("other seeds", other_seeds), ("sign flips", sign_flips)):
        try:
            drawn = draw(data, plan, np.random.default_rng(0))
        except ValueError:
            shares[name] = None
            continue
        shares[name] = sum(share_outside(*drawn, intervals))
    return shares


def share_found(data: WordErrors, plan: Plan, kind: Kind, rate: float) -> float:
    """Return the share of comparisons in which planted damage is found."""
    random = np.random.default_rng(round(1e6 * rate))
    differences, words = sign_flips(data, plan, random)
    of_each = np.repeat(words[..., None] // plan.seeds, plan.seeds, axis=2)
    return share_outside(differences + damage(kind, rate, data, of_each, random).sum(2), words)[0]


def rate_found(powers: Mapping[float, float], power: float) -> float | None:
    """Return the rate that is found with a power, between measured ones; None beyond them.

    Powers are joined by lines on the normal scale, on which a power grows evenly with the damage.
    """
    normal, rates = NormalDist(), sorted(powers)
    shares = np.maximum.accumulate([powers[rate] for rate in rates])
    if not shares[0] <= power <= shares[-1]:
        return None
    scaled = [normal.inv_cdf(share) for share in shares.clip(1e-3, 1 - 1e-3).tolist()]
    return float(np.interp(normal.inv_cdf(power), scaled, rates))


def choose(count: int, shape: tuple[int, int], random: np.random.Generator) -> Integers:
    """Return places of texts, without replacement where there are enough."""
    if shape[1] <= count:
        return random.random((shape[0], count)).argsort(axis=1)[:, : shape[1]]
    return random.integers(count, size=shape)


def _choose_texts(
    data: WordErrors, plan: Plan, random: np.random.Generator
) -> tuple[Integers, Integers]:
    """Return the places of texts and their words with all seeds, both `[N, B]`."""
    chosen = choose(len(data.words), (plan.comparisons, plan.texts), random)
    return chosen, np.array(data.words)[chosen] * plan.seeds
