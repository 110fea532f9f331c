"""Dynamic time warping of two spectra whose lengths differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["align", "frame_distances", "warped_distance"]

_BAND = 0.1
"""Half-width of the band around the diagonal, as a share of the longer spectrum."""

_LEAST_BAND = 20
"""The same in frames, for short audio: about a quarter of a second."""


def frame_distances(
    left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the root-mean-square difference over mels of each frame; shapes broadcast."""
    return np.asarray(np.sqrt(np.mean(np.square(left - right), axis=-1)))


def warped_distance(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> float:
    """Return the mean frame distance along the best alignment.

    Args:
        left: Spectrum, shape `[L, mels]`.
        right: Spectrum, shape `[R, mels]`.
    """
    starts = _band_starts(len(left), len(right))
    costs = [
        frame_distances(frame, right[begin:end])
        for frame, (begin, end) in zip(left, starts, strict=True)
    ]
    path = align(costs, [begin for begin, _ in starts])
    return float(np.mean([costs[i][j - starts[i][0]] for i, j in path]))


def align(costs: Sequence[npt.NDArray[np.float64]], starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the cheapest monotonic path from the first cell to the last, steps of 0 or 1.

    Args:
        costs: The cells of each row that lie in the band.
        starts: The column of each row's first cell; the first is 0. Neighbouring rows overlap.
    """
    totals = [np.cumsum(costs[0])]
    for row in range(1, len(costs)):
        offset = starts[row] - starts[row - 1]
        totals.append(_next_row(totals[-1], costs[row], offset))
    return _trace_back(totals, starts)


def _next_row(
    above: npt.NDArray[np.float64], cost: npt.NDArray[np.float64], offset: int
) -> npt.NDArray[np.float64]:
    """Return the cheapest totals of a row, given those of the row above.

    A cell is entered from above (`entry`) and followed along the row, so that its total is
    min over k <= j of entry[k] + sum(cost[k..j]); with prefix sums that is a running minimum.
    """
    padded = np.full(offset + len(cost) + 1, np.inf)
    known = min(len(above), len(padded) - 1)
    padded[1 : known + 1] = above[:known]
    entry = np.minimum(padded[offset:-1], padded[offset + 1 :])
    sums = np.cumsum(cost)
    return np.asarray(sums + np.minimum.accumulate(entry - (sums - cost)))


def _trace_back(
    totals: Sequence[npt.NDArray[np.float64]], starts: Sequence[int]
) -> list[tuple[int, int]]:
    row, column = len(totals) - 1, starts[-1] + len(totals[-1]) - 1
    path = [(row, column)]
    while row or column:
        # The diagonal comes first, so that of equal paths the shortest is taken.
        steps = [(row - 1, column - 1), (row - 1, column), (row, column - 1)]
        row, column = min(steps, key=lambda cell: _total(totals, starts, cell))
        path.append((row, column))
    return path[::-1]


def _total(
    totals: Sequence[npt.NDArray[np.float64]], starts: Sequence[int], cell: tuple[int, int]
) -> float:
    row, column = cell
    if row < 0 or not starts[row] <= column < starts[row] + len(totals[row]):
        return np.inf
    return float(totals[row][column - starts[row]])


def _band_starts(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the columns `[begin, end)` of the band in each row, around the diagonal."""
    if rows == 1:
        return [(0, columns)]
    # A row must reach the next row's centre, or a steep diagonal would leave the band.
    reach = max(_LEAST_BAND, round(_BAND * max(rows, columns)), -(-columns // rows))
    centres = np.linspace(0, columns - 1, rows).round().astype(int).tolist()
    return [(max(0, centre - reach), min(columns, centre + reach + 1)) for centre in centres]
