"""Calls of decoders, in pieces: gradients of a whole sentence of samples need too much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["in_pieces"]

_FRAMES = 128
"""Of a piece: one to three seconds."""

_DIMENSIONS = 3
"""Batch, channels, frames."""


def in_pieces(given: tuple[Any, Any], frames: int = _FRAMES) -> Iterator[tuple[Any, Any]]:
    """Yield what a decoder is given, in pieces that cover all of it.

    They need no context where the original is asked to answer to them, too: at a piece's borders
    teacher and student hear the same silence. The last piece may begin inside of the one before.

    Args:
        given: Arguments and keywords, in which tensors `[batch, channels, frames]` of the largest
            number of frames are cut, and all others stay.
        frames: The most that a piece has.
    """
    leaves = tree_flatten(given)[0]
    length = max((leaf.shape[-1] for leaf in leaves if _has_frames(leaf)), default=0)
    if length <= frames:
        yield given
        return
    starts = [*range(0, length - frames, frames), length - frames]
    for start in starts:
        yield tree_map(lambda leaf, start=start: _cut(leaf, length, start, frames), given)


def _has_frames(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() == _DIMENSIONS


def _cut(leaf: Any, length: int, start: int, frames: int) -> Any:
    if not _has_frames(leaf) or leaf.shape[-1] != length:
        return leaf
    return leaf[..., start : start + frames].clone()
