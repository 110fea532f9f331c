"""Steps 2 and 3, ``codec`` and ``latents``: train the codec, and read the speech with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from demo_voice.losses import mel_loss, stft_loss
from torch import Tensor

from . import tensors
from .speech import FRAME
from .texts import HELD_OUT
from .training import Run
from .voice import build

if TYPE_CHECKING:
    import random
    from pathlib import Path

_CROP = 24
"""Frames that are decoded at once."""
_NOISE = 0.4
_PULL = 0.003
"""Weight of the latents' square: without it they would grow until their noise is nothing."""


def _decode(codec: Any, latents: Tensor) -> Tensor:
    """Return samples. ``[b, t, c] -> [b, t * FRAME]``."""
    from pocket_tts.modules.stateful_module import init_states

    steps = latents.shape[1] * round(codec.encoder_frame_rate / codec.frame_rate)
    state = init_states(codec, len(latents), sequence_length=steps)
    return codec.decode_from_latent(latents, state)[:, 0]


def train_codec(work: Path, steps: int, device: str, batch: int, rate: float) -> None:
    """Train the codec to repeat the speech, though its latents are noisy."""
    packed, about = tensors.read(work / "speech.safetensors")
    torch.manual_seed(0)
    root = build(work / "voice", about["said"])
    codec = root.mimi.to(device).train()
    clips = tensors.split("audio", packed)[:-HELD_OUT]
    longest = _CROP * FRAME

    def crop(clip: Tensor, rng: random.Random) -> Tensor:
        start = rng.randrange(len(clip) // FRAME - _CROP + 1) * FRAME
        return clip[start : start + longest].float() / 32768

    def loss(rng: random.Random) -> dict[str, Tensor]:
        chosen = [clips[rng.randrange(len(clips))] for _ in range(batch)]
        real = torch.stack([crop(clip, rng) for clip in chosen]).to(device)
        mean = codec.encode_to_latent(real[:, None])
        spread = _NOISE * torch.rand(batch, 1, 1, device=device)
        fake = _decode(codec, mean + spread * torch.randn_like(mean))
        return {
            "mel": 4 * mel_loss(real, fake),
            "stft": stft_loss(real, fake),
            "pull": _PULL * mean.square().mean(),
        }

    clips = [clip for clip in clips if len(clip) >= longest]
    Run(work / "codec.safetensors", codec, steps, rate).train(loss)


def load_codec(work: Path, root: Any) -> None:
    """Give a model the trained codec's averaged weights."""
    path = work / "codec.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; run the step `codec` first")
    Run(path, root.mimi, 0, 0.0).averaged()


@torch.no_grad()
def make_latents(work: Path) -> None:
    """Write ``WORK/latents.safetensors``: all that the language model learns from."""
    packed, about = tensors.read(work / "speech.safetensors")
    root = build(work / "voice", about["said"])
    load_codec(work, root)
    clips = tensors.split("audio", packed)
    rows = [root.mimi.encode_to_latent(c.float()[None, None] / 32768)[0] for c in clips]
    together = torch.cat(rows)
    kept = tensors.joined("latents", [row.half() for row in rows])
    kept |= {"mean": together.mean(0), "std": together.std(0), "prompt": clips[0]}
    kept |= {name: packed[name] for name in ("places", "places.lengths")}
    tensors.write(work / "latents.safetensors", kept, about)
    print(f"{len(rows)} sentences, {len(together)} latents")
