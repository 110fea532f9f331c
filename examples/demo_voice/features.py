"""Spectra and the loaded corpus; shapes are ``[batch, time]`` or ``[batch, bins, frames]``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import soundfile as sf
import torch
from torch import Tensor
from torch.nn import functional

from .speech import SAMPLE_RATE, Utterance

if TYPE_CHECKING:
    from pathlib import Path

HOP = 256
N_FFT = 1024
N_MELS = 80
HELD_OUT = 60
"""The last utterances of the shuffled corpus: never trained on, only used to measure."""


@cache
def mel_filters(n_mels: int = N_MELS, n_fft: int = N_FFT) -> Tensor:
    """Triangular HTK-scale mel filters. ``-> [n_mels, n_fft // 2 + 1]``."""
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
    freqs = np.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    low, mid, high = points[:-2, None], points[1:-1, None], points[2:, None]
    rising, falling = (freqs - low) / (mid - low), (high - freqs) / (high - mid)
    return torch.from_numpy(np.maximum(0, np.minimum(rising, falling)).astype(np.float32))


@cache
def _window(n_fft: int) -> Tensor:
    return torch.hann_window(n_fft)


def spectrum(audio: Tensor, n_fft: int = N_FFT, hop: int = HOP) -> Tensor:
    """Magnitudes. ``[b, n] -> [b, n_fft // 2 + 1, n // hop]``."""
    pad = (n_fft - hop) // 2
    padded = functional.pad(audio.unsqueeze(1), (pad, pad), mode="reflect").squeeze(1)
    window = _window(n_fft).to(audio.device)
    stft = torch.stft(padded, n_fft, hop, n_fft, window, center=False, return_complex=True)
    return torch.view_as_real(stft).pow(2).sum(-1).clamp_min(1e-10).sqrt()


def log_mel(magnitudes: Tensor) -> Tensor:
    """``[b, 513, frames] -> [b, 80, frames]``."""
    return torch.log((mel_filters().to(magnitudes.device) @ magnitudes).clamp_min(1e-4))


@dataclass
class Clip:
    """One utterance in memory; ``wav`` holds a whole number of frames of ``HOP`` samples."""

    index: int
    text: str
    ids: Tensor  # [phonemes] int64
    wav: Tensor  # [frames * HOP] float32
    durations: Tensor  # [phonemes] int64, sums to frames (empty before alignment)

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.wav) // HOP


def _load_clip(work: Path, entry: Utterance) -> Clip:
    audio, _ = sf.read(work / f"wav/{entry['i']:05d}.wav", dtype="float32")
    wav = torch.from_numpy(np.ascontiguousarray(audio[: len(audio) // HOP * HOP]))
    return Clip(entry["i"], entry["text"], torch.tensor(entry["ids"]), wav, torch.empty(0))


def load_corpus(work: Path) -> tuple[list[Clip], list[Clip]]:
    """Return (training clips, held-out clips) of a working folder."""
    meta: list[Utterance] = json.loads((work / "meta.json").read_text(encoding="utf-8"))
    clips = (_load_clip(work, entry) for entry in meta[:-HELD_OUT])
    return [c for c in clips if c.frames > len(c.ids) + 2], load_held_out(work)


def load_held_out(work: Path) -> list[Clip]:
    """Return the held-out clips alone."""
    meta: list[Utterance] = json.loads((work / "meta.json").read_text(encoding="utf-8"))
    return [_load_clip(work, entry) for entry in meta[-HELD_OUT:]]
