"""The options that save most within budgets of damage, one for each group of layers.

Errors of groups are independent, so their energies add up. Of all choices within the budgets the
most is saved by the one that a price for energy separates best (Everett, "Generalized Lagrange
Multiplier Method", 1963).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import TypeVar

from tts_compress.compression.sound import Energies
from tts_compress.recipes.recipe import Rule

AIM = 0.8
"""Share of a bound that a choice aims at."""

_LESS = 0.95
"""Most of the energy of a choice that broke a bound that the next may use."""


@dataclass(frozen=True, slots=True)
class Option:
    """A form of one group of layers."""

    rules: tuple[Rule, ...]
    """Rules that come before the recipe's; none leave the group to the recipe."""

    energies: Energies
    """Damage of each kind in squares of the bound."""

    saved: float
    """Share of the model's time and bytes that it takes less of than in FP32."""


OptionT = TypeVar("OptionT", bound=Option)


def next_budget(shares: Sequence[tuple[float, float]], last: float) -> float:
    """Return the budget to try next for a kind of damage.

    Args:
        shares: Energies that were tried, the latest last, with the share of the bound that each
            used.
        last: The budget of the latest, of which it used what other kinds left it.
    """
    kept = max((budget for budget, share in shares if share < AIM), default=0.0)
    broken = min((budget for budget, share in shares if share >= AIM), default=inf)
    used, share = shares[-1]
    reached = used * min(16.0, max(1 / 16, (AIM / max(share, 1e-3)) ** 2))
    if broken == inf:
        return max(reached, last)
    budget = sqrt(kept * broken) if kept else reached  # half-way in decibels
    # A worst moment follows energies by chance: other choices are to come where one broke a bound.
    return min(budget, _LESS * used) if share > 1 else budget


def select(
    options: Mapping[str, Sequence[OptionT]], budgets: Sequence[float]
) -> dict[str, OptionT]:
    """Return an option for each group: the most saved within a sum of energies of each kind."""
    low, high = 0.0, 1e12
    for _ in range(100):
        price = (low * high) ** 0.5 if low else high / 1e3
        if _fits(_at_price(options, price, budgets).values(), budgets):
            high = price
        else:
            low = price
        if (low and high / low < 1.001) or high < 1e-12:
            break
    chosen = _at_price(options, high, budgets)
    # A common price leaves some of the budgets: they go to the best options that still fit.
    while better := [
        (option.saved - chosen[name].saved, name, option)
        for name, several in options.items()
        for option in several
        if option.saved > chosen[name].saved and _fits({**chosen, name: option}.values(), budgets)
    ]:
        _, name, option = max(better, key=lambda step: step[0])
        chosen[name] = option
    return chosen


def _at_price(
    options: Mapping[str, Sequence[OptionT]], price: float, budgets: Sequence[float]
) -> dict[str, OptionT]:
    """Return for each group what saves most at a price of the budget that it uses most of."""

    def cost(option: Option) -> float:
        pairs = zip(option.energies, budgets, strict=True)
        shares = (energy / budget if budget else inf for energy, budget in pairs if energy)
        return price * max(shares, default=0.0)

    return {
        name: max(several, key=lambda option: option.saved - cost(option))
        for name, several in options.items()
    }


def _fits(chosen: Iterable[Option], budgets: Sequence[float]) -> bool:
    return all(used <= most for used, most in zip(energies_of(chosen), budgets, strict=True))


def energies_of(chosen: Iterable[Option]) -> list[float]:
    """Return the sum of each kind's energies."""
    return [sum(kind) for kind in zip(*(option.energies for option in chosen), strict=True)]
