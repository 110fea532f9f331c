"""How F5-TTS's solver is run; the defaults are the system's own."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["F5Options", "split_location"]

# Outside these, time would run backwards or not at all.
_LIMITS: dict[str, tuple[float, float]] = {
    "nfe_step": (1, 1000),
    "cfg_strength": (0, 100),
    "sway_sampling_coef": (-1, 1.75),
    "speed": (0.1, 10),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Options:
    """Settings of inference, named as in `F5TTS.infer`.

    Raises:
        ModelError: One of them is no number, or out of its range.
    """

    nfe_step: int = 32
    """Steps of the solver, 1 to 1000; each runs the transformer once."""

    cfg_strength: float = 2.0
    """How far guidance goes beyond the prompt, 0 to 100; 0 halves the work."""

    sway_sampling_coef: float = -1.0
    """How the steps are spread, -1 to 1.75: below 0 more of them are early."""

    speed: float = 1.0
    """Of speech, 0.1 to 10 times the recording's."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = _LIMITS[field.name]
            kinds = int if field.name == "nfe_step" else int | float
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if not (fits and math.isfinite(value) and low <= value <= high):
                kind = "an integer" if kinds is int else "a number"
                raise ModelError(f"{field.name} is {value!r}; give {kind} from {low:g} to {high:g}")

    def changed(self, given: Mapping[str, Any], where: str) -> F5Options:
        """Return these options with some exchanged.

        Args:
            given: Values by name.
            where: What states them, for errors.

        Raises:
            ModelError: There is no such option, or a value is wrong.
        """
        unknown = sorted(set(given) - {field.name for field in fields(self)})
        if unknown:
            raise ModelError(
                f"{where} states {unknown[0]!r}; there are {', '.join(sorted(_LIMITS))}"
            )
        return replace(self, **dict(given))

    def stated(self) -> dict[str, float]:
        """Return the options that are not the defaults, by name."""
        default = asdict(F5Options())
        return {name: value for name, value in asdict(self).items() if value != default[name]}


def split_location(location: str) -> tuple[str, dict[str, float]]:
    """Split `DIR?nfe_step=16&speed=1.2` into what it names and the options that it states.

    Raises:
        ModelError: What follows the question mark is not names and numbers.
    """
    name, separator, query = location.partition("?")
    if not separator or Path(location).exists():
        return location, {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
        return name, {key: _number(value) for key, value in pairs}
    except ValueError as error:
        raise ModelError(
            f"cannot read the options {query!r}: {error}; write them as 'nfe_step=16&speed=1.2'"
        ) from error


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)
