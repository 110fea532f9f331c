"""Intervals by paired bootstrap: of a difference of two corpus-level rates, of a ratio of times.

Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation",
ICASSP 2004. What is resampled of words is the text, with all its seeds: renderings of one text
share its difficulty, and treating them as independent would make the interval too narrow. Of times
it is the pair of runs that took turns: what disturbs the machine disturbs both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tts_compress.evaluation.rates import summarize_edits
from tts_compress.report.evaluation import ErrorRate, Pair

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy.typing as npt

    from tts_compress.evaluation.rates import Edits

__all__ = ["RESAMPLES", "compare_rates", "compare_times", "paired_interval"]

RESAMPLES = 10_000

_SEED = 20_040_517
_CHUNK = 2_000_000
"""Draws held in memory at once."""


def compare_rates(
    reference: Sequence[Edits], candidate: Sequence[Edits], blocks: Sequence[Hashable]
) -> ErrorRate:
    """Return both corpus-level rates and the interval of their difference.

    Args:
        reference: Edits of each utterance of the reference.
        candidate: Of the same utterances of the candidate.
        blocks: Which text each utterance speaks.

    Raises:
        EvaluationError: There are no utterances.
        ValueError: The sequences differ in length, or transcripts differ within a pair.
    """
    counts = Pair(reference=summarize_edits(reference), candidate=summarize_edits(candidate))
    differences, tokens = _block_sums(reference, candidate, blocks)
    return ErrorRate(
        reference=counts.reference.rate,
        candidate=counts.candidate.rate,
        # The same arithmetic as for the resamples: no last digit puts it outside its interval.
        delta=float(differences.sum() / tokens.sum()),
        interval=paired_interval(differences, tokens),
        counts=counts,
    )


def compare_times(
    reference: npt.NDArray[np.float64], candidate: npt.NDArray[np.float64]
) -> tuple[float, tuple[float, float] | None]:
    """Return the geometric mean of the ratios reference over candidate, and its interval.

    It is also the ratio of the two geometric means. Every run counts alike, however long it takes.

    Args:
        reference: Seconds of each run, positive, any shape.
        candidate: Of the runs that took turns with those, same shape.

    Returns:
        The ratio, and its 95 % interval over resampled pairs of runs; None for a single pair,
        which tells nothing of how far runs spread.
    """
    logarithms = np.log(reference / candidate).ravel()
    pairs = len(logarithms)
    # The same arithmetic as for the resamples: no last digit puts it outside its interval.
    ratio = float(np.exp(logarithms.sum() / pairs))
    if pairs == 1:
        return ratio, None
    low, high = np.exp(paired_interval(logarithms, np.ones(pairs, np.int64)))
    return ratio, (float(low), float(high))


def paired_interval(
    differences: npt.NDArray[np.int64] | npt.NDArray[np.float64], tokens: npt.NDArray[np.int64]
) -> tuple[float, float]:
    """Return the 95 % percentile interval of sum(differences) / sum(tokens) over resampled blocks.

    Args:
        differences: Candidate minus reference of each block, such as errors, shape `[B]`.
        tokens: What each block is counted in, such as transcript tokens, shape `[B]`, positive.
    """
    blocks = len(tokens)
    random = np.random.default_rng(_SEED)
    deltas = np.empty(RESAMPLES)
    rows = max(1, _CHUNK // blocks)
    for start in range(0, RESAMPLES, rows):
        chosen = random.integers(blocks, size=(min(rows, RESAMPLES - start), blocks))
        deltas[start : start + rows] = differences[chosen].sum(1) / tokens[chosen].sum(1)
    low, high = np.quantile(deltas, (0.025, 0.975))
    return float(low), float(high)


def _block_sums(
    reference: Sequence[Edits], candidate: Sequence[Edits], blocks: Sequence[Hashable]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the error difference and the tokens of each text, its utterances summed."""
    differences: dict[Hashable, int] = {}
    tokens: dict[Hashable, int] = {}
    for before, after, block in zip(reference, candidate, blocks, strict=True):
        if before.tokens != after.tokens:
            raise ValueError(
                f"not a pair: transcripts of {before.tokens} and {after.tokens} tokens"
            )
        differences[block] = differences.get(block, 0) + after.errors - before.errors
        tokens[block] = tokens.get(block, 0) + before.tokens
    return np.array(list(differences.values())), np.array(list(tokens.values()))
