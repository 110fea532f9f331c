"""An evaluation against an earlier one: if they compare, and which change is certain."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tts_compress.errors import EvaluationError

_DECISIVE = {
    "name": "suite",
    "recognizer": "recognizer",
    "seeds": "seeds",
    "texts": "number of texts",
    "normalizer": "text normaliser",
    "sha256": "SHA-256 of the suite",
}
"""Fields of `suite` in a report that decide what its figures mean, with their names for people."""


class Estimate(NamedTuple):
    """A figure with the ends of its 95 % interval; all three are equal for an exact one."""

    value: float
    low: float
    high: float


def certain_change(before: Estimate, now: Estimate, *, upwards: bool) -> float:
    """Return the end nearest to no rise, or to no fall, of the interval of `now - before`.

    The interval of the difference is made from those of both figures (MOVER: Zou and Donner,
    "Construction of confidence intervals about effect measures: a general approach", Statistics in
    Medicine 27, 2008), as if they were independent. Two evaluations of the same texts resemble
    each other, so it is rather too wide: 95 % is the least.

    Args:
        before: The figure of the earlier report.
        now: That of the report which is judged.
        upwards: Bound a rise from below; else a fall from above.
    """
    difference = now.value - before.value
    if upwards:
        return difference - math.hypot(now.value - now.low, before.high - before.value)
    return difference + math.hypot(now.high - now.value, before.value - before.low)


def refuse_incomparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse reports whose figures do not compare.

    Raises:
        EvaluationError: Suite, seeds, recognizer or normaliser differ; the message has both.
    """
    earlier, present = before.get("suite"), now.get("suite")
    if not (isinstance(earlier, Mapping) and isinstance(present, Mapping)):
        raise EvaluationError("not comparable: one of the two reports does not state its suite")
    for key, name in _DECISIVE.items():
        if earlier.get(key) != present.get(key):
            raise EvaluationError(
                f"not comparable: {name} {earlier.get(key)!r} in the earlier report, "
                f"{present.get(key)!r} in this one; evaluate again as before, or commit this "
                "report as the one to compare with"
            )
