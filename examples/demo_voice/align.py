"""Step 2, ``align``: which frames of the teacher's speech belong to which phoneme id.

A tiny network predicts the mean log-mel of every phoneme in its context; monotonic
alignment search finds the best path; both are repeated a few times (a hard EM).
Writes ``WORK/durations.pt`` (``{utterance: int64 [phonemes]}``) and ``WORK/aligner.pt``,
with which ``check`` later finds the phonemes in any speech.  Held-out clips are not used.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .features import N_MELS, Clip, load_corpus, log_mel, spectrum

if TYPE_CHECKING:
    from pathlib import Path

FloatArray = npt.NDArray[np.float32]
BATCH = 32
BLOCKED = np.float32(-1e9)


def monotonic_paths(
    score: FloatArray, frames: npt.NDArray[np.int64], phonemes: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Best monotonic alignments of a batch; every phoneme gets at least one frame.

    ``score [b, T, S]``, ``frames [b]``, ``phonemes [b]`` -> per item durations ``[S_i]``.
    """
    batch, steps, width = score.shape
    best = np.full((batch, width), BLOCKED, np.float32)
    best[:, 0] = score[:, 0, 0]
    advanced = np.zeros((batch, steps, width), bool)
    for t in range(1, steps):
        previous = np.full((batch, width), BLOCKED, np.float32)
        previous[:, 1:] = best[:, :-1]
        advanced[:, t] = previous > best
        best = np.maximum(best, previous) + score[:, t]
    return [_trace(advanced[b, : frames[b]], int(phonemes[b])) for b in range(batch)]


def _trace(advanced: npt.NDArray[np.bool_], phonemes: int) -> npt.NDArray[np.int64]:
    """Walk one path back. ``advanced [T, S] -> durations [S]``."""
    durations = np.zeros(phonemes, np.int64)
    position = phonemes - 1
    for t in range(len(advanced) - 1, -1, -1):
        durations[position] += 1
        # forced: as many frames left as phonemes left
        if position > 0 and (advanced[t, position] or t == position):
            position -= 1
    return durations


class MeanMel(nn.Module):
    """Phoneme ids to the mean normalised log-mel of each. ``[b, S] -> [b, S, 80]``."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width, N_MELS)

    def forward(self, ids: Tensor) -> Tensor:
        """See the class."""
        h = self.embed(ids)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = norm(h + torch.relu(conv(h.transpose(1, 2)).transpose(1, 2)))
        out: Tensor = self.out(h)
        return out


def _scores(mels: Tensor, means: Tensor) -> Tensor:
    """Negative mean squared distance. ``[b, T, 80], [b, S, 80] -> [b, T, S]``."""
    return -(torch.cdist(mels, means) ** 2) / N_MELS


def _diagonal(frames: Tensor, phonemes: Tensor, steps: int, width: int) -> Tensor:
    """Squared distance from the diagonal, to start from. ``-> [b, T, S]``."""
    t = torch.arange(steps)[None, :, None] / frames[:, None, None]
    s = torch.arange(width)[None, None, :] / phonemes[:, None, None]
    return (t - s) ** 2


def _align_batch(net: MeanMel, clips: list[Clip], mels: list[Tensor], pull: float) -> Tensor:
    """Store the best durations in the clips and return the loss of the batch."""
    ids = nn.utils.rnn.pad_sequence([c.ids for c in clips], batch_first=True)
    mel = nn.utils.rnn.pad_sequence(mels, batch_first=True)
    means: Tensor = net(ids)
    frames = torch.tensor([len(m) for m in mels])
    phonemes = torch.tensor([len(c.ids) for c in clips])
    with torch.no_grad():
        score = _scores(mel, means)
        if pull > 0:
            score -= pull * _diagonal(frames, phonemes, mel.shape[1], ids.shape[1])
    paths = monotonic_paths(score.numpy(), frames.numpy(), phonemes.numpy())
    loss = torch.zeros(())
    for b, (clip, path) in enumerate(zip(clips, paths, strict=True)):
        clip.durations = torch.from_numpy(path)
        spread = means[b, : len(clip.ids)].repeat_interleave(clip.durations, 0)
        loss = loss + (spread - mels[b]).pow(2).mean()
    return loss / len(clips)


@dataclass
class Aligner:
    """The trained aligner; ``mean`` and ``std`` ``[80]`` normalise log-mels."""

    net: MeanMel
    mean: Tensor
    std: Tensor

    def normalised(self, wav: Tensor) -> Tensor:
        """``[frames * HOP] -> [frames, 80]``."""
        return (log_mel(spectrum(wav[None]))[0].T.contiguous() - self.mean) / self.std

    @torch.no_grad()
    def durations(self, ids: Tensor, wav: Tensor) -> Tensor:
        """Frames of every phoneme in speech. ``[S], [frames * HOP] -> [S]``."""
        mel = self.normalised(wav)
        score = _scores(mel[None], self.net(ids[None])).numpy()
        frames, phonemes = np.array([len(mel)]), np.array([len(ids)])
        return torch.from_numpy(monotonic_paths(score, frames, phonemes)[0])


def save_aligner(aligner: Aligner, path: Path) -> None:
    """Write an aligner atomically."""
    part = path.with_suffix(".part")
    state = {"net": aligner.net.state_dict(), "mean": aligner.mean, "std": aligner.std}
    torch.save(state, part)
    part.replace(path)


def load_aligner(path: Path) -> Aligner:
    """Read what ``save_aligner`` wrote."""
    saved = torch.load(path, weights_only=True)
    net = MeanMel()
    net.load_state_dict(saved["net"])
    return Aligner(net, saved["mean"], saved["std"])


def align(work: Path, epochs: int = 6, seed: int = 0) -> None:
    """Align the whole corpus and write ``durations.pt`` and ``aligner.pt``."""
    torch.manual_seed(seed)
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    train, _ = load_corpus(work)
    sample = torch.cat([log_mel(spectrum(c.wav[None]))[0].T for c in train[:300]])
    aligner = Aligner(MeanMel(), sample.mean(0), sample.std(0))
    mels = {c.index: aligner.normalised(c.wav) for c in train}
    optimizer = torch.optim.Adam(aligner.net.parameters(), 2e-3)
    start = time.monotonic()
    for epoch in range(epochs):
        order = sorted(train, key=lambda c: c.frames + rng.random() * 40)
        batches = [order[k : k + BATCH] for k in range(0, len(order), BATCH)]
        rng.shuffle(batches)
        total = 0.0
        for k, clips in enumerate(batches):
            pull = 200.0 * max(0.0, 1 - k / len(batches)) if epoch == 0 else 0.0
            loss = _align_batch(aligner.net, clips, [mels[c.index] for c in clips], pull)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        spent = time.monotonic() - start
        print(f"epoch {epoch}: {total / len(batches):.3f}  {spent:.0f} s", flush=True)
    save_aligner(aligner, work / "aligner.pt")
    part = work / "durations.pt.part"
    torch.save({c.index: c.durations for c in train}, part)
    part.replace(work / "durations.pt")
