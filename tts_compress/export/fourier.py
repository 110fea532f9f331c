"""Fourier transforms as small matrix products, which every ONNX runtime has, and log mel values.

A transform of N = 2AB values is two small products (Cooley and Tukey, 1965): with frequencies
k = B·k1 + k2 and times n = n1 + 2A·n2, the sum over k1 depends on n1 and k2 only, and the one over
k2 that follows takes the same matrix for every n1. For N = 1024 that is an eighth of the work and a
sixteenth of the constants of one product with the whole basis.

The constants have three dimensions although one of them may be 1: quantizers take a two-dimensional
constant of a product for trained weights, and rounding a Fourier basis costs more than it saves.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tts_compress.numerics.spectra import mel_filters


class Fourier(nn.Module):
    """The transform of real values; the transposed inverse, but for the scale.

    Args:
        window: Values (N,) that frames are multiplied by; N is even.
    """

    def __init__(self, window: torch.Tensor) -> None:
        super().__init__()
        first, second = _products(len(window), edge=1.0, inner=1.0)
        self.first = nn.Buffer(first.mT.contiguous(), persistent=False)
        self.second = nn.Buffer(second.mT.contiguous(), persistent=False)
        self.window = nn.Buffer(window.float(), persistent=False)

    def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return real and imaginary parts (B, T, N / 2 + 1) of frames (B, T, N)."""
        outer, _, rows = self.first.shape
        values = (frames * self.window).reshape(-1, outer, rows).transpose(1, 2)
        sums = torch.matmul(values, self.second)  # (frames, n1, real or imaginary and k2)
        sums = sums.reshape(-1, rows, 2, outer).permute(3, 0, 2, 1)
        parts = torch.matmul(sums.reshape(outer, -1, 2 * rows), self.first)
        parts = parts.permute(1, 2, 0).reshape(-1, frames.shape[1], outer * rows)
        real = parts[:, :, : outer * rows // 2 + 1]
        return real, functional.pad(parts[:, :, outer * rows // 2 + 1 :], (1, 1))


class InverseFourier(nn.Module):
    """The inverse of the short-time Fourier transform.

    Frames are windowed, added where they overlap and divided by the sum of the squared windows
    (Griffin and Lim, 1984).

    Args:
        window: Values (N,); N is even.
        hop: Samples between frames.
        trim: Samples left out at both ends.
    """

    def __init__(self, window: torch.Tensor, hop: int, trim: int) -> None:
        super().__init__()
        size = len(window)
        self.hop = hop
        self.pieces = math.ceil(size / hop)
        self.missing = self.pieces * hop - size
        self.start = trim
        self.stop = -(trim + self.missing) or None
        first, second = _products(size, edge=1 / size, inner=2 / size)
        squares = functional.pad(window.double().square(), (0, self.missing)).float()
        self.first = nn.Buffer(first, persistent=False)
        self.second = nn.Buffer(second, persistent=False)
        self.window = nn.Buffer(window.float(), persistent=False)
        self.squares = nn.Buffer(squares[None, None], persistent=False)

    def forward(self, real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
        """Return audio (B, samples) of spectra, given as two tensors (B, T, N / 2 + 1)."""
        outer, rows, _ = self.first.shape
        # The outermost imaginary parts are 0 by definition: the real one of the highest frequency
        # takes the place of the lowest one's, and N values are left.
        values = torch.cat([real, imaginary[:, :, 1:-1]], dim=2)
        values = values.reshape(-1, rows, outer).permute(2, 0, 1)
        sums = torch.matmul(values, self.first)  # (B, frames, real or imaginary and n1)
        sums = sums.reshape(outer, -1, 2, rows).permute(1, 3, 2, 0)
        frames = torch.matmul(sums.reshape(-1, rows, 2 * outer), self.second)  # n1, n2
        frames = frames.transpose(1, 2).reshape(-1, real.shape[1], outer * rows) * self.window
        if self.missing:
            frames = functional.pad(frames, (0, self.missing))
        audio = self._add_up(frames)
        envelope = self._add_up(self.squares + torch.zeros_like(real[:1, :, :1]))
        return audio[:, self.start : self.stop] / envelope[:, self.start : self.stop]

    def _add_up(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the sum (B, samples) of frames (B, T, pieces · hop) that overlap."""
        last = self.pieces - 1
        parts = [
            functional.pad(
                frames[:, :, piece * self.hop : (piece + 1) * self.hop], (0, 0, piece, last - piece)
            )
            for piece in range(self.pieces)
        ]
        return sum(parts[1:], parts[0]).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSettings:
    """Sizes of frames and bands of a spectrogram."""

    sample_rate: int = 24_000
    n_fft: int = 1024
    hop_length: int = 256
    win_length: int = 1024
    bands: int = 100


class Frames(nn.Module):
    """The short-time Fourier transform with Hann's window, of audio that is reflected at its ends.

    Args:
        size: Values of a frame; even.
        hop: Samples between frames.
        length: Values of the window, which stands in the middle of a frame.
        edge: Samples that are reflected at either end.
    """

    def __init__(self, size: int, hop: int, length: int, edge: int) -> None:
        super().__init__()
        self.size = size
        self.edge = edge
        self.hop = hop
        self.pieces = math.ceil(size / hop)
        window = torch.hann_window(length, dtype=torch.float64)
        before = (size - length) // 2
        window = functional.pad(window, (before, size - length - before))
        self.transform = Fourier(window)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return squared magnitudes (1, T, size / 2 + 1) of samples (1, L)."""
        padded = functional.pad(audio[:, None], (self.edge, self.edge), mode="reflect")[:, 0]
        padded = functional.pad(padded, (0, self.pieces * self.hop - 2 * self.edge))
        frames = (audio.shape[1] + 2 * self.edge - self.size) // self.hop + 1
        kept = padded[:, : (frames + self.pieces - 1) * self.hop]
        blocks = kept.reshape(1, -1, self.hop)
        cut = [blocks[:, piece : piece + frames] for piece in range(self.pieces)]
        real, imaginary = self.transform(torch.cat(cut, dim=2)[:, :, : self.size])
        power: torch.Tensor = real * real + imaginary * imaginary
        return power


class LogMel(nn.Module):
    """A log mel spectrogram of magnitudes, with frames centred on their time.

    Args:
        settings: Sizes; the window is Hann's, the bands are HTK's triangles of height 1.
    """

    def __init__(self, settings: FrameSettings) -> None:
        super().__init__()
        size = settings.n_fft
        self.frames = Frames(size, settings.hop_length, settings.win_length, size // 2)
        filters = mel_filters(settings.sample_rate, size, settings.bands).T
        values = torch.from_numpy(filters.astype("float32", order="C"))
        self.filters = nn.Buffer(values[None], persistent=False)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return log mel values (1, T, bands) of samples (1, L); T is L // hop + 1."""
        magnitudes = torch.sqrt(self.frames(audio))
        return torch.log(torch.clamp(torch.matmul(magnitudes, self.filters), min=1e-5))


def _products(size: int, *, edge: float, inner: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the constants of a transform from N = 2AB values of a spectrum to N times.

    Args:
        size: N.
        edge: Factor of the lowest and the highest frequency.
        inner: Factor of those between.

    Returns:
        Matrices (B, 2A, 4A) that sum over k1, and (1, 2B, B) that sum over k2.
    """
    half = size // 2
    divisors = [a for a in range(1, half + 1) if half % a == 0]
    low = min(divisors, key=lambda a: 2 * a + half // a)  # A for which the products are smallest
    high = half // low
    k1 = torch.arange(low)[None, :, None]
    k2 = torch.arange(high)
    n1 = torch.arange(2 * low)
    # Products of integers are taken modulo N, so that the angle is exact whatever the size.
    angle = 2 * torch.pi * ((high * k1 + k2[:, None, None]) * n1 % size).double() / size
    weight = torch.full((high, low, 1), inner, dtype=torch.float64)
    weight[0, 0] = edge
    real = torch.cat([angle.cos(), angle.sin()], dim=2) * weight
    imaginary = torch.cat([-angle.sin(), angle.cos()], dim=2) * weight
    imaginary[0, 0] = 0
    imaginary[0, 0, : 2 * low] = (1 - 2 * (n1 % 2)).double() * edge  # the highest frequency
    turn = 2 * torch.pi * (k2[:, None] * k2 % high).double() / high
    second = torch.cat([turn.cos(), -turn.sin()])
    return torch.cat([real, imaginary], dim=1).float(), second.float()[None]
