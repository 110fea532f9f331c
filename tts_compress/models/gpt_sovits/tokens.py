"""Semantic tokens in the form that language models are compared by.

A long text is spoken in segments, each of which begins anew with the prompt. In one sequence the
token that ends a segment stands before the next, and one more of them before the first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tts_compress.errors import ModelError
from tts_compress.models.language_model import Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from torch import Tensor

    from tts_compress.models.gpt_sovits.speech import Segment

__all__ = ["join_segments", "score_tokens"]


def join_segments(said: Sequence[Tensor], end: int) -> Tokens:
    """Return the tokens of all segments as one sequence.

    Args:
        said: `[T]` each.
        end: The token that ends speech.
    """
    ids = [end]
    for segment in said:
        ids += [*segment.tolist(), end]
    joined = np.array(ids, np.int64)[:, None]
    return Tokens(ids=joined, chosen=joined[1:] != end)


@torch.no_grad()
def score_tokens(
    decoder: Any, segments: Sequence[Segment], prompt: Tensor | None, tokens: Tokens, end: int
) -> npt.NDArray[np.float32]:
    """Return the scores from which each of `tokens.ids[1:]` would be drawn, shape `[S, 1, V]`.

    Args:
        decoder: An opened one.
        segments: Of the text.
        prompt: Tokens of the recording, `[T]`, which each segment follows; None without them.
        tokens: What `join_segments` returned.
        end: The token that ends speech.

    Raises:
        ModelError: The tokens are not ones of this model and text.
    """
    said = _split(tokens, end)
    limit = int(decoder.vocab_size)
    if len(said) != len(segments) or not all(((s >= 0) & (s < limit)).all() for s in said):
        raise ModelError(
            f"tokens of shape {tokens.ids.shape} in {len(said)} segments are not ones of this "
            f"model, which speaks the text in {len(segments)} and has tokens from 0 to {limit - 1}"
        )
    before = torch.zeros(0, dtype=torch.int64) if prompt is None else prompt.long()
    scores = []
    for segment, ids in zip(segments, said, strict=True):
        read = torch.cat([before, ids]).unsqueeze(0)
        found = decoder(segment.phones.unsqueeze(0), segment.bert.unsqueeze(0), read)
        scores.append(found[0, len(before) :].float())
    stacked: npt.NDArray[np.float32] = torch.cat(scores).unsqueeze(1).numpy()
    return stacked


def _split(tokens: Tokens, end: int) -> list[Tensor]:
    """Return the segments, `[T]` each; none of what does not begin and end with `end`."""
    ids = tokens.ids
    if ids.ndim != 2 or ids.shape[1] != 1 or len(ids) < 2 or set(ids[[0, -1], 0]) != {end}:
        return []
    flat = torch.from_numpy(np.ascontiguousarray(ids[:, 0]))
    borders = (flat == end).nonzero().flatten().tolist()
    return [flat[before + 1 : after] for before, after in pairwise(borders)]
