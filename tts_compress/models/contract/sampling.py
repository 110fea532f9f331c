"""Draws of tokens by their scores, with noise that two models share.

The largest sum of score and Gumbel noise is drawn, which has the probabilities of a softmax. Two
models that are given the same noise draw the same token unless their scores differ enough, as in
`models.torch_noise`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tts_compress.errors import ModelError
from tts_compress.models.contract.schema import Sample

Drawn = npt.NDArray[np.int64]


def draw_tokens(
    sample: Sample,
    logits: npt.NDArray[np.floating],
    before: Sequence[Drawn],
    seed: Sequence[int] | None,
    stops: Sequence[int | None] = (),
) -> Drawn:
    """Return a token of each row of scores, shape `[1, K]`.

    Args:
        sample: The draw.
        logits: Output of the graph, shape `[…, V]`.
        before: What was drawn in the rounds before, each of shape `[T, K]`.
        seed: Chooses the noise; None takes the most probable.
        stops: Tokens that end a loop, which must be among the V.
    """
    if missing := [stop for stop in stops if stop is not None and stop >= logits.shape[-1]]:
        raise ModelError(
            f"'{sample.logits}' has the shape {list(logits.shape)}, with the tokens' scores last; "
            f"{missing[0]}, which ends the loop, is none of them"
        )
    scores = np.reshape(logits, (-1, logits.shape[-1])).astype(np.float64)
    scores = scores[-1:] if sample.last else scores
    if not (scores < np.inf).all():
        raise ModelError(
            f"the scores '{sample.logits}' are not finite; the graph's weights are damaged or were "
            "compressed too far"
        )
    if before and sample.repetition_penalty != 1:
        seen, penalty = np.concatenate(before).T, sample.repetition_penalty
        old = np.take_along_axis(scores, seen, axis=-1)
        np.put_along_axis(scores, seen, np.where(old < 0, old * penalty, old / penalty), axis=-1)
    is_sure = sample.greedy is not None and (scores.argmax(axis=-1) == sample.greedy).all()
    if seed is not None and sample.temperature > 0 and not is_sure:
        scores = np.where(_likely(sample, scores), scores, -np.inf) / sample.temperature
        scores += np.random.default_rng(seed).gumbel(size=scores.shape)
    return np.asarray(scores.argmax(axis=-1)[None], np.int64)


def _likely(sample: Sample, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return the mask of the tokens to draw from, the most probable of which is always one."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=-1) / sample.temperature
    shares = np.exp(ranked - ranked[:, :1])
    if sample.top_k:
        shares[:, sample.top_k :] = 0
    shares /= shares.sum(axis=-1, keepdims=True)
    kept = (np.cumsum(shares, axis=-1) - shares < sample.top_p) & (shares > 0)
    mask = np.empty_like(kept)
    np.put_along_axis(mask, order, kept, axis=-1)
    return mask
