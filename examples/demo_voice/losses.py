"""Losses of the demo voice."""

from __future__ import annotations

import torch
from torch import Tensor

from .features import log_mel, spectrum

RESOLUTIONS = ((256, 64), (512, 128), (1024, 256), (2048, 512))


def mel_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Mean absolute log-mel difference. ``[b, n], [b, n] -> []``."""
    return (log_mel(spectrum(real)) - log_mel(spectrum(fake))).abs().mean()


def stft_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Spectral convergence plus log magnitude over several resolutions. ``-> []``."""
    total = torch.zeros((), device=real.device)
    for n_fft, hop in RESOLUTIONS:
        a, b = spectrum(real, n_fft, hop), spectrum(fake, n_fft, hop)
        logs = (a.clamp_min(1e-4).log() - b.clamp_min(1e-4).log()).abs().mean()
        total = total + (a - b).norm() / a.norm() + 0.5 * logs
    return total / len(RESOLUTIONS)


def kl_loss(z_p: Tensor, log_q: Tensor, m_p: Tensor, log_p: Tensor, mask: Tensor) -> Tensor:
    """KL of posterior to prior per frame. ``[b, c, T] x 4, [b, 1, T] -> []``."""
    kl = log_p - log_q - 0.5 + 0.5 * (z_p - m_p) ** 2 * torch.exp(-2 * log_p)
    return (kl * mask).sum() / mask.sum()


def masked_l1(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Mean absolute difference inside the mask. ``[b, c, T] x 2, [b, 1, T] -> []``."""
    return ((a - b).abs() * mask).sum() / (mask.sum() * a.shape[1])


def judge_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Least-squares loss of the discriminators. ``-> []``."""
    parts = [
        (1 - r[-1]).pow(2).mean() + f[-1].pow(2).mean() for r, f in zip(real, fake, strict=True)
    ]
    return torch.stack(parts).mean()


def fool_loss(fake: list[list[Tensor]]) -> Tensor:
    """Least-squares loss of the generator. ``-> []``."""
    return torch.stack([(1 - f[-1]).pow(2).mean() for f in fake]).mean()


def feature_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Relative distance of the discriminators' inner maps. ``-> []``."""
    parts = []
    for maps_r, maps_f in zip(real, fake, strict=True):
        for r, f in zip(maps_r[:-1], maps_f[:-1], strict=True):
            parts.append((r.detach() - f).abs().mean() / r.detach().abs().mean().clamp_min(1e-4))
    return torch.stack(parts).mean()
