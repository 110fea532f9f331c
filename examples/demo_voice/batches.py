"""Random windows of the corpus, as tensors for one training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from .features import HOP, Clip, load_corpus, spectrum

if TYPE_CHECKING:
    import random
    from pathlib import Path

SEGMENT = 32
"""Frames decoded to audio per utterance."""
MARGIN = 16
"""Frames of context for flow and posterior on each side (fewer at the utterance's ends)."""
WINDOW = SEGMENT + 2 * MARGIN


@dataclass
class Batch:
    """``b`` utterances; ``S`` phonemes, ``W = WINDOW`` frames, ``G = SEGMENT`` frames."""

    ids: Tensor  # [b, S]
    id_lengths: Tensor  # [b]
    durations: Tensor  # [b, 1, S] float
    owner: Tensor  # [b, W] phoneme of every frame of the window
    mask: Tensor  # [b, 1, W]
    offset: Tensor  # [b] first decoded frame inside the window
    spec: Tensor  # [b, 513, W] magnitudes
    audio: Tensor  # [b, G * HOP]


def load_aligned(work: Path) -> list[Clip]:
    """Return the training clips with their durations."""
    train, _ = load_corpus(work)
    durations = torch.load(work / "durations.pt", weights_only=True)
    for clip in train:
        clip.durations = durations[clip.index]
    return [c for c in train if c.frames >= SEGMENT]


def _window(clip: Clip, start: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return owner ``[<=W]``, context audio, segment audio and offset of one clip."""
    first = max(0, start - MARGIN)
    last = min(clip.frames, start + SEGMENT + MARGIN)
    owner = torch.arange(len(clip.ids)).repeat_interleave(clip.durations)[first:last]
    extra = 2 * HOP
    padded = functional.pad(clip.wav, (extra, extra))
    context = padded[first * HOP : last * HOP + 2 * extra]
    segment = clip.wav[start * HOP : (start + SEGMENT) * HOP]
    return owner, context, segment, start - first


def draw_batch(clips: list[Clip], size: int, rng: random.Random) -> Batch:
    """Draw ``size`` random utterances of similar length and one random window of each."""
    pool = sorted(rng.sample(clips, 4 * size), key=lambda c: len(c.ids))
    block = rng.randrange(4)
    chosen = pool[block * size : (block + 1) * size]
    rng.shuffle(chosen)
    starts = [rng.randint(0, c.frames - SEGMENT) for c in chosen]
    parts = [_window(c, s) for c, s in zip(chosen, starts, strict=True)]
    ids = nn.utils.rnn.pad_sequence([c.ids for c in chosen], batch_first=True)
    weights = [c.durations.float() for c in chosen]
    owner, mask = torch.zeros(size, WINDOW, dtype=torch.long), torch.zeros(size, 1, WINDOW)
    context = torch.zeros(size, (WINDOW + 4) * HOP)
    for b, (own, around, _, _) in enumerate(parts):
        owner[b, : len(own)] = own
        mask[b, 0, : len(own)] = 1
        context[b, : len(around)] = around
    return Batch(
        ids=ids,
        id_lengths=torch.tensor([len(c.ids) for c in chosen]),
        durations=nn.utils.rnn.pad_sequence(weights, batch_first=True).unsqueeze(1),
        owner=owner,
        mask=mask,
        offset=torch.tensor([p[3] for p in parts]),
        spec=spectrum(context)[:, :, 2:-2] * mask,
        audio=torch.stack([p[2] for p in parts]),
    )


def cut(frames: Tensor, offset: Tensor) -> Tensor:
    """Cut the decoded segments. ``[b, c, W], [b] -> [b, c, SEGMENT]``."""
    index = offset[:, None, None] + torch.arange(SEGMENT)[None, None]
    return frames.gather(2, index.expand(-1, frames.shape[1], -1))


def expand(phonemes: Tensor, owner: Tensor) -> Tensor:
    """Repeat phoneme values for their frames. ``[b, c, S], [b, W] -> [b, c, W]``."""
    return phonemes.gather(2, owner[:, None].expand(-1, phonemes.shape[1], -1))
