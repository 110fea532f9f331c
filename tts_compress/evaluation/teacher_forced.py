"""How far a compressed language model's scores are from the original's, word for word.

Left to themselves two language models part at the first token that differs, and from there on
nothing compares. So both read the same tokens, those that the reference says with a seed, and are
asked at each step what they would say next. Positions count where the reference chose a sound:
not where a codebook has not begun, is over, or a token is forced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.errors import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from tts_compress.models.language_model import LanguageModel

__all__ = ["TeacherForced", "compare_logits", "compare_teacher_forced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherForced:
    """The difference of a candidate's scores from the reference's, over all positions."""

    agreement: float
    """Share of positions with the same most probable token, in [0, 1]."""

    kl_nats: float
    """Mean Kullback-Leibler divergence of the candidate's distribution from the reference's."""

    logit_distance: float
    """RMS difference of the scores, relative to the RMS of the reference's; 0 is equal.

    Each position's scores are taken from their mean, which no probability depends on.
    """

    positions: int
    """Tokens compared: steps times codebooks, without those that are forced or special."""


def compare_teacher_forced(
    reference: LanguageModel, candidate: LanguageModel, texts: Iterable[str], *, seed: int
) -> TeacherForced:
    """Return how far a candidate's scores are from the reference's on what the reference says.

    Args:
        reference: Says the texts.
        candidate: Only reads what was said.
        texts: What to say; the text at index i is said with noise of `seed + i`.
        seed: Chooses the noise.

    Raises:
        EvaluationError: There is nothing to compare, or scores are not finite or do not fit.
        TextError: A text cannot be spoken.
    """
    sums = _Sums()
    for index, text in enumerate(texts):
        tokens = reference.generate_tokens(text, seed=seed + index)
        found = reference.logits(text, tokens), candidate.logits(text, tokens)
        sums = sums.plus(_compare(*found, tokens.chosen))
    return sums.result()


def compare_logits(
    reference: npt.NDArray[np.float32],
    candidate: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.bool_],
) -> TeacherForced:
    """Return how far scores are from others for the same tokens.

    Args:
        reference: Scores, shape `[S, K, V]`.
        candidate: The same of the other model.
        chosen: Which positions count, shape `[S, K]`.

    Raises:
        EvaluationError: The shapes differ, no position counts, or scores are not finite.
    """
    return _compare(reference, candidate, chosen).result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Sums over positions, which add up over texts."""

    agreements: int = 0
    nats: float = 0.0
    squared_difference: float = 0.0
    squared_reference: float = 0.0
    positions: int = 0

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(
            agreements=self.agreements + other.agreements,
            nats=self.nats + other.nats,
            squared_difference=self.squared_difference + other.squared_difference,
            squared_reference=self.squared_reference + other.squared_reference,
            positions=self.positions + other.positions,
        )

    def result(self) -> TeacherForced:
        if not self.positions:
            raise EvaluationError("the reference chose no tokens to compare; give other texts")
        if self.squared_reference > 0:
            distance = (self.squared_difference / self.squared_reference) ** 0.5
        else:  # a reference that finds all tokens alike
            distance = float("inf") if self.squared_difference > 0 else 0.0
        return TeacherForced(
            agreement=self.agreements / self.positions,
            kl_nats=self.nats / self.positions,
            logit_distance=distance,
            positions=self.positions,
        )


def _compare(
    reference: npt.NDArray[np.float32],
    candidate: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.bool_],
) -> _Sums:
    if reference.shape != candidate.shape or reference.shape[:2] != chosen.shape:
        raise EvaluationError(
            f"scores of shapes {reference.shape} and {candidate.shape} for tokens of shape "
            f"{chosen.shape} do not belong together; compare models of one architecture"
        )
    sums = _Sums()
    # One codebook at a time: in double precision all of them would be many times the scores.
    for book in range(chosen.shape[1]):
        where = chosen[:, book]
        pair = reference[where, book], candidate[where, book]
        for name, scores in zip(("reference", "candidate"), pair, strict=True):
            if not np.isfinite(scores).all():
                raise EvaluationError(
                    f"the {name}'s scores of codebook {book} are not finite; its weights are "
                    "damaged or were compressed too far"
                )
        sums = sums.plus(_compare_rows(*pair))
    return sums


def _compare_rows(reference: npt.NDArray[np.float32], candidate: npt.NDArray[np.float32]) -> _Sums:
    """Compare scores, shape `[P, V]`."""
    first, second = _centred(reference), _centred(candidate)
    known, guessed = _log_probabilities(first), _log_probabilities(second)
    nats = (np.exp(known) * (known - guessed)).sum(axis=-1)
    return _Sums(
        agreements=int((reference.argmax(axis=-1) == candidate.argmax(axis=-1)).sum()),
        # Never below zero but for rounding.
        nats=float(np.maximum(nats, 0).sum()),
        squared_difference=float(np.square(second - first).sum()),
        squared_reference=float(np.square(first).sum()),
        positions=len(reference),
    )


def _centred(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = scores.astype(np.float64)
    centred: npt.NDArray[np.float64] = wide - wide.mean(axis=-1, keepdims=True)
    return centred


def _log_probabilities(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    below = scores - scores.max(axis=-1, keepdims=True)
    found: npt.NDArray[np.float64] = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return found
