"""A figure of both models with the interval of its change: value and row of many metrics."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tts_compress.evaluation import formatting
from tts_compress.evaluation.bootstrap import text_interval
from tts_compress.evaluation.metric import Record, Row, Trend, trend
from tts_compress.evaluation.pairs import Run


class Paired(Record):
    """A figure over all utterances."""

    reference: float
    candidate: float
    delta: float
    """Candidate minus reference, mean over utterances."""

    interval: tuple[float, float] | None
    """Its 95 % interval over resampled texts, each with all its seeds; None of too few texts."""


def compare_pairs(run: Run, before: npt.ArrayLike, after: npt.ArrayLike) -> Paired | None:
    """Return the comparison of a figure of each pair; of those where both are finite.

    Args:
        run: Its pairs say which texts belong together.
        before: The reference's figures, shape `[pairs]`.
        after: The candidate's, likewise.

    Returns:
        The comparison; None where nothing is finite.
    """
    left, right = np.asarray(before, np.float64), np.asarray(after, np.float64)
    known = np.isfinite(left) & np.isfinite(right)
    if not known.any():
        return None
    left, right = left[known], right[known]
    texts = np.array(run.blocks)[known]
    _, places = np.unique(texts, return_inverse=True)
    return Paired(
        reference=float(left.mean()),
        candidate=float(right.mean()),
        delta=float((right - left).mean()),
        interval=text_interval(
            np.bincount(places, weights=right - left), np.bincount(places).astype(np.int64)
        ),
    )


@dataclass(frozen=True, slots=True)
class Show:
    """The form in which a figure is printed."""

    label: str
    unit: str = ""
    digits: int = 2
    scale: float = 1.0
    """Factor to the unit: 100 for a share in %."""

    better: Literal["higher", "lower"] | None = "higher"
    """None where a change is neither better nor worse."""

    def rows(self, value: Paired, _: object = None) -> list[Row]:
        """Return the line of a figure of both models."""
        change = formatting.signed(self.scale * value.delta, self.digits)
        interval = formatting.interval(value.interval, self.scale, self.digits)
        return [
            Row(
                label=self.label,
                reference=self._show(value.reference),
                candidate=self._show(value.candidate),
                change=f"{change} (95 % interval {interval})",
                trend=self._trend(value),
            )
        ]

    def floor_rows(self, value: Paired, _: object = None) -> list[Row]:
        """Return the line of a likeness or a distance of the candidate to the reference.

        The value's `reference` is that of the reference to itself with other seeds.
        """
        floor, direction = self._show(value.reference), self._trend(value)
        change = f"floor, other seeds: {floor}"
        if abs(value.reference - (self.better == "higher")) < 1e-6:
            change, direction = "no floor: the reference speaks alike with every seed", "unknown"
        return [
            Row(
                label=self.label,
                candidate=self._show(value.candidate),
                change=change,
                # Closer than that is as close as anybody can ask for.
                trend="same" if direction == "better" else direction,
            )
        ]

    def _show(self, figure: float) -> str:
        return f"{self.scale * figure:.{self.digits}f} {self.unit}".strip()

    def _trend(self, value: Paired) -> Trend:
        low, high = value.interval or (math.nan, math.nan)
        found = trend(-high, -low, 0.0) if self.better == "lower" else trend(low, high, 0.0)
        return found if self.better is not None or found == "same" else "unknown"
