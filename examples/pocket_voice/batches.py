"""Sentences as tokens and latents, and batches of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import tensors
from .voice import build_tokenizer

if TYPE_CHECKING:
    import random
    from pathlib import Path

_PROMPT = (6, 14)
"""Frames of another sentence in front, as the voice's recording."""


@dataclass(frozen=True)
class Sentence:
    """Tokens `[s]`, latents `[t, c]` and the token of each latent `[t]`; `s` for silence after."""

    tokens: Tensor
    latents: Tensor
    places: Tensor


@dataclass(frozen=True)
class Batch:
    """Sentences in rows; `b`, `p` are row and position of each latent in the model's input."""

    words: tuple[Tensor, Tensor, Tensor]
    """Row, position and token of each token."""
    rows: Tensor
    positions: Tensor
    before: Tensor
    """The latents that are read, `[n, c]`; NaN at the start."""
    latents: Tensor
    looks: Tensor
    """Position of the token that belongs to each latent, `[n]`."""
    ends: Tensor
    """1 where speech is over, `[n]`."""
    prompt: Tensor
    """`[b, p, c]`."""

    def to(self, device: str) -> Batch:
        """Return the batch on a device."""
        words = tuple(part.to(device) for part in self.words)
        rest = {name: part.to(device) for name, part in vars(self).items() if name != "words"}
        return Batch(words=words, **rest)


def load_sentences(work: Path) -> tuple[list[Sentence], dict[str, Tensor], dict[str, Any]]:
    """Return all sentences, and the file that they are in."""
    kept, about = tensors.read(work / "latents.safetensors")
    tokenizer = build_tokenizer(about["said"])
    latents = tensors.split("latents", kept)
    places = tensors.split("places", kept)
    sentences = [
        Sentence(
            torch.tensor(tokenizer.encode(text).ids),
            (latent.float() - kept["mean"]) / kept["std"],
            place.long(),
        )
        for text, latent, place in zip(about["phonemes"], latents, places, strict=True)
    ]
    return sentences, kept, about


def draw_batch(sentences: list[Sentence], size: int, rng: random.Random) -> Batch:
    """Draw sentences of similar length."""
    drawn = rng.sample(sentences, min(4 * size, len(sentences)))
    pool = sorted(drawn, key=lambda sentence: len(sentence.latents))
    begin = rng.randrange(max(1, len(pool) - size + 1))
    chosen = pool[begin : begin + size]
    length = rng.randint(*_PROMPT)
    first = 1 + length
    counts = [(len(s.tokens), len(s.latents)) for s in chosen]
    start = torch.full((1, chosen[0].latents.shape[1]), float("nan"))
    return Batch(
        words=(
            torch.cat([torch.full((words,), n) for n, (words, _) in enumerate(counts)]),
            torch.cat([torch.arange(words) + first for words, _ in counts]),
            torch.cat([s.tokens for s in chosen]),
        ),
        rows=torch.cat([torch.full((frames,), n) for n, (_, frames) in enumerate(counts)]),
        positions=torch.cat([torch.arange(frames) + first + words for words, frames in counts]),
        before=torch.cat([torch.cat([start, s.latents[:-1]]) for s in chosen]),
        latents=torch.cat([s.latents for s in chosen]),
        looks=torch.cat([s.places.clamp(max=len(s.tokens) - 1) + first for s in chosen]),
        ends=torch.cat([(s.places == len(s.tokens)).float() for s in chosen]),
        prompt=torch.stack([_cut(rng.choice(sentences).latents, length, rng) for _ in chosen]),
    )


def _cut(latents: Tensor, length: int, rng: random.Random) -> Tensor:
    start = rng.randrange(len(latents) - length + 1)
    return latents[start : start + length]
