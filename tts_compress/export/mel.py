"""Log mel spectrograms of recordings, as the official packages make them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tts_compress.export.fourier import Fourier

__all__ = ["FrameSettings", "LogMel", "htk_filters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSettings:
    """How a recording is cut into frames, and those into bands."""

    sample_rate: int = 24_000
    n_fft: int = 1024
    hop_length: int = 256
    win_length: int = 1024
    bands: int = 100


class LogMel(nn.Module):
    """A log mel spectrogram of magnitudes, with frames centred on their time.

    Args:
        settings: Sizes; the window is Hann's, the bands are HTK's triangles of height 1.
    """

    filters: torch.Tensor

    def __init__(self, settings: FrameSettings) -> None:
        super().__init__()
        size, hop = settings.n_fft, settings.hop_length
        self.size = size
        self.edge = size // 2
        self.hop = hop
        self.pieces = math.ceil(size / hop)
        window = torch.hann_window(settings.win_length, dtype=torch.float64)
        before = (size - settings.win_length) // 2
        window = functional.pad(window, (before, size - settings.win_length - before))
        self.transform = Fourier(window)
        self.register_buffer("filters", htk_filters(settings)[None], persistent=False)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return log mel values (1, T, bands) of samples (1, L); T is L // hop + 1."""
        padded = functional.pad(audio[:, None], (self.edge, self.edge), mode="reflect")[:, 0]
        padded = functional.pad(padded, (0, self.pieces * self.hop - 2 * self.edge))
        frames = audio.shape[1] // self.hop + 1
        kept = padded[:, : (frames + self.pieces - 1) * self.hop]
        blocks = kept.reshape(1, -1, self.hop)
        cut = [blocks[:, piece : piece + frames] for piece in range(self.pieces)]
        real, imaginary = self.transform(torch.cat(cut, dim=2)[:, :, : self.size])
        magnitudes = torch.sqrt(real * real + imaginary * imaginary)
        return torch.log(torch.clamp(torch.matmul(magnitudes, self.filters), min=1e-5))


def htk_filters(settings: FrameSettings) -> torch.Tensor:
    """Return triangular bands (N / 2 + 1, bands) of height 1, evenly spaced on HTK's mel scale.

    A frequency of f Hz is 2595 · log10(1 + f / 700) mel; the bands reach from 0 to half the
    sample rate.
    """
    nyquist = settings.sample_rate / 2
    highest = 2595 * math.log10(1 + nyquist / 700)
    mels = torch.linspace(0, highest, settings.bands + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mels / 2595) - 1)
    bins = torch.linspace(0, nyquist, settings.n_fft // 2 + 1, dtype=torch.float64)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()
