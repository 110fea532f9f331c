"""Step 4, ``durations``: teach the duration predictor alone, on the finished text encoder.

By its likelihood alone the predictor is right on average over its noise, but voices speak with
little of it, where its output is too short for every long sound.  Here its output at little
noise also has to be near the teacher's durations in mean square error, which favours the mean.
Writes its weights into ``WORK/checkpoint.pt``.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batches import load_aligned
from .model import VoiceConfig, build_voice

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 16
MOST_NOISE = 0.3
"""Largest noise scale at which a rendering's durations are compared with the teacher's."""
SHOWN = 50
_Sample = tuple[Tensor, Tensor]
"""The encoder's output for an utterance ``[S, c]`` and its durations ``[S]``."""


@torch.no_grad()
def encode(voice: Any, work: Path) -> list[_Sample]:
    """Return every training utterance as the duration predictor sees it."""
    voice.eval()
    samples = []
    for clip in load_aligned(work):
        hidden = voice.enc_p(clip.ids[None], torch.tensor([len(clip.ids)]))[0]
        samples.append((hidden[0].T.contiguous(), clip.durations.float()))
    return samples


def draw(samples: list[_Sample], rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden ``[b, c, S]``, durations ``[b, 1, S]`` and mask ``[b, 1, S]`` of a batch.

    Utterances of a batch are of similar length.
    """
    pool = sorted(rng.sample(samples, 4 * BATCH), key=lambda s: len(s[1]))
    block = rng.randrange(4)
    chosen = pool[block * BATCH : (block + 1) * BATCH]
    pad = nn.utils.rnn.pad_sequence
    hidden = pad([h for h, _ in chosen], batch_first=True).transpose(1, 2)
    durations = pad([d for _, d in chosen], batch_first=True).unsqueeze(1)
    return hidden, durations, (durations > 0).float()


def train_durations(work: Path, steps: int, seed: int = 0) -> None:
    """Train for a number of steps and put the result into the checkpoint."""
    path = work / "checkpoint.pt"
    saved = torch.load(path, weights_only=True)
    voice = build_voice(VoiceConfig())
    voice.load_state_dict(saved["average"])
    samples = encode(voice, work)
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    torch.manual_seed(seed)
    voice.dp.train()
    optimizer = torch.optim.AdamW(voice.dp.parameters(), betas=(0.8, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    started, sums = time.monotonic(), torch.zeros(2)
    for step in range(1, steps + 1):
        hidden, durations, mask = draw(samples, rng)
        likelihood = voice.dp(hidden, mask, durations).sum() / mask.sum()
        noise = rng.random() * MOST_NOISE
        spoken = voice.dp(hidden, mask, reverse=True, noise_scale=noise).exp()
        # Lengths are rounded up to frames: the middle of the last frame is the best guess.
        error = ((spoken - (durations - 0.5)).square() * mask).sum() / mask.sum()
        loss = likelihood + error
        optimizer.zero_grad()
        loss.backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(voice.dp.parameters(), 1.0)):
            optimizer.step()
        schedule.step()
        sums += torch.stack([likelihood.detach(), error.detach()])
        if step % SHOWN == 0:
            shown = "  ".join(f"{value / SHOWN:.3f}" for value in sums.tolist())
            print(f"{step}  {shown}  {time.monotonic() - started:.0f} s", flush=True)
            sums.zero_()
    for name, value in voice.state_dict().items():
        if name.startswith("dp."):
            saved["average"][name] = value
            saved["voice"][name] = value
    part = path.with_suffix(".part")
    torch.save(saved, part)
    part.replace(path)
