"""How far a student's outputs are from its teacher's; every loss is zero for equal ones."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tts_compress.errors import TTSCompressError
from tts_compress.models.recorded_calls import compared_outputs
from tts_compress.models.shims.spectra import MelSpectrogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import Tensor

    from tts_compress.models.distillation import Objective

__all__ = ["distance", "kl_divergence", "log_mel_loss", "mse", "waveform_loss"]

_WINDOWS = (512, 1024, 2048)
_MEL_SECONDS = 1024 / 22_050
_QUIET = 1e-6 / 16
"""Power, over the square of the window, 60 dB below a full-scale sine: what is below is silence, as
it is to whoever measures log-mel distance. HiFi-GAN V2 in four bits has a waveform loss of 0.82 if
magnitudes count down to 1e-5, of which 0.14 is left with this floor: the rest is silence."""


def distance(objective: Objective, student: Any, teacher: Any) -> Tensor:
    """Return the loss that an objective names, summed over the tensors that it compares.

    Args:
        objective: Says what is compared and how.
        student: What the student's module returned.
        teacher: What the teacher's did, for the same inputs.

    Raises:
        ModelError: An output has no such tensors.
        TTSCompressError: Their shapes differ.
    """
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "kl": kl_divergence,
        "mse": mse,
        "waveform": waveform_loss,
    }
    loss = losses[objective.loss]
    pairs = zip(
        compared_outputs(objective, student), compared_outputs(objective, teacher), strict=True
    )
    return torch.stack([loss(*pair) for pair in pairs]).sum()


def kl_divergence(
    student_logits: Tensor, teacher_logits: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the mean Kullback-Leibler divergence of the student from the teacher, in nats.

    Args:
        student_logits: Scores of V tokens, shape `[…, V]`.
        teacher_logits: The same of the teacher; gradients do not flow into it. A token that it
            rules out, with a score of minus infinity, does not count.
        mask: Which positions count, bool, shape `[…]`; at least one.

    Returns:
        A scalar, float32.

    Raises:
        TTSCompressError: The shapes do not fit, or no position counts.
    """
    _check_shapes(student_logits, teacher_logits)
    known = functional.log_softmax(teacher_logits.detach().float(), dim=-1)
    guessed = functional.log_softmax(student_logits.float(), dim=-1)
    terms = known.exp() * (known - guessed)
    nats = torch.where(known == -torch.inf, 0.0, terms).sum(dim=-1)
    return _mean(nats, mask)


def mse(student: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean squared difference.

    Args:
        student: Any shape.
        teacher: The same shape; gradients do not flow into it.
        weights: What each element counts, at least zero, or a bool mask; any shape that
            broadcasts to theirs.

    Returns:
        A scalar, float32.

    Raises:
        TTSCompressError: The shapes do not fit, or nothing counts.
    """
    _check_shapes(student, teacher)
    return _mean((student.float() - teacher.detach().float()).square(), weights)


def waveform_loss(student: Tensor, teacher: Tensor, windows: Sequence[int] = _WINDOWS) -> Tensor:
    """Return the mean absolute difference of samples, plus that of their log spectra.

    Samples alone would make quiet sounds worth nothing; spectra alone would let the phase go.

    Args:
        student: Samples in [-1, 1], shape `[…, T]`, any T above 0.
        teacher: The same of the teacher; gradients do not flow into it.
        windows: Lengths of Hann windows, in samples, each moved by a quarter of itself. The log
            magnitudes' differences are averaged over all of them.

    Returns:
        A scalar, float32.

    Raises:
        TTSCompressError: The shapes differ or there are no samples.
    """
    _check_shapes(student, teacher)
    heard, meant = student.float(), teacher.detach().float()
    spectra = [(_log_spectrum(heard, n) - _log_spectrum(meant, n)).abs().mean() for n in windows]
    return (heard - meant).abs().mean() + torch.stack(spectra).mean()


def log_mel_loss(student: Tensor, teacher: Tensor, *, sample_rate: int) -> Tensor:
    """Return the mean absolute difference of log mel spectra, of 80 bands.

    Bands are as wide as ears hear them: what rounding leaves between the harmonics of a voice
    counts for as much as it is heard.

    Args:
        student: Samples in [-1, 1], shape `[…, T]`, any T above 0.
        teacher: The same of the teacher; gradients do not flow into it.
        sample_rate: Hz.

    Returns:
        A scalar, float32.

    Raises:
        TTSCompressError: The shapes differ or there are no samples.
    """
    _check_shapes(student, teacher)
    window = 2 ** round(log2(_MEL_SECONDS * sample_rate))
    mel = MelSpectrogram(sample_rate, n_fft=window, hop_length=window // 4, n_mels=80, center=False)
    mel = mel.to(student.device)
    # Short outputs are filled up; both alike.
    missing = max(window - student.shape[-1], 0)
    heard, meant = (
        mel(functional.pad(samples, (0, missing))).clamp(min=_QUIET * window**2).log() / 2
        for samples in (student.float(), teacher.detach().float())
    )
    difference: Tensor = (heard - meant).abs().mean()
    return difference


def _log_spectrum(samples: Tensor, window: int) -> Tensor:
    """Return log magnitudes, shape `[B, window / 2 + 1, frames]`."""
    spectrum = torch.stft(
        samples.reshape(-1, samples.shape[-1]),
        window,
        hop_length=window // 4,
        window=torch.hann_window(window, device=samples.device),
        pad_mode="constant",  # reflection needs more samples than short outputs have
        return_complex=True,
    )
    # From the power: the magnitude's gradient is not finite at zero.
    power = torch.view_as_real(spectrum).square().sum(dim=-1)
    return power.clamp(min=_QUIET * window**2).log() / 2


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weighted mean of all elements."""
    if weights is None:
        return values.mean()
    try:
        shared = weights.to(values).broadcast_to(values.shape)
    except RuntimeError as error:
        raise TTSCompressError(
            f"weights of shape {tuple(weights.shape)} do not fit values of shape "
            f"{tuple(values.shape)}"
        ) from error
    total = shared.sum()
    if not bool(total > 0):
        raise TTSCompressError("the weights are all zero; at least one position must count")
    # What does not count may be anything, infinities included.
    return torch.where(shared > 0, values * shared, 0.0).sum() / total


def _check_shapes(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape or not student.numel():
        raise TTSCompressError(
            f"outputs of shapes {tuple(student.shape)} and {tuple(teacher.shape)} cannot be "
            "compared; they must be equal and not empty"
        )
