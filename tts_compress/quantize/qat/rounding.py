"""Rounding that gradients pass through.

Forward, values fall on the grid of their codes. Backward, rounding counts as the identity and
clipping as what it is (the straight-through estimator); grids that are learned get the gradients
of "Learned Step Size Quantization" (Esser et al., 2020, arXiv 1902.08153).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

__all__ = ["affine_codes", "pass_through", "round_to_range", "round_to_scale", "with_gradient_of"]

_LEVELS = 255


def affine_codes(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and zero point of 8-bit codes that count from 0; zero is always exact.

    The rule of `layers.integer.activation_codes`, for tensors.

    Args:
        low: The smallest value that is kept, FP64, a scalar.
        high: The largest.

    Returns:
        FP32 and int32 scalars.
    """
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / _LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
    return scale.float(), (-low / scale).round().to(torch.int32)


def pass_through(values: Tensor, rounded: Tensor) -> Tensor:
    """Return `rounded`, with gradients as if it were `values`."""
    answer: Tensor = _PassThrough.apply(values, rounded)  # type: ignore[no-untyped-call]
    return answer


def with_gradient_of(factor: float, values: Tensor) -> Tensor:
    """Return values whose gradient is multiplied by a factor."""
    answer: Tensor = _ScaledGradient.apply(values, factor)  # type: ignore[no-untyped-call]
    return answer


def round_to_scale(values: Tensor, scales: Tensor, limits: tuple[int, int]) -> Tensor:
    """Return symmetrically rounded values; gradients flow into them and into the scales.

    Args:
        values: FP32.
        scales: FP32, of a shape that broadcasts to the values'.
        limits: The smallest and the largest code.
    """
    steps = (values / scales).clamp(*limits)
    return pass_through(steps, steps.detach().round()) * scales


def round_to_range(values: Tensor, low: Tensor, high: Tensor, first_code: int) -> Tensor:
    """Return values rounded to 8 bits; gradients flow into them and into the range's ends.

    Args:
        values: FP32; the first axis is the batch.
        low: The smallest value that is kept, FP64, a scalar.
        high: The largest.
        first_code: 0, or -128 where codes are signed.
    """
    answer: Tensor = _RoundToRange.apply(values, low, high, first_code)  # type: ignore[no-untyped-call]
    return answer


class _PassThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, rounded: Tensor) -> Tensor:
        del ctx, values
        return rounded.clone()  # an input may not be returned as it is

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _RoundToRange(torch.autograd.Function):
    """One function in the place of a chain of small ones, each of which would keep a tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Tensor, high: Tensor, first_code: int) -> Tensor:
        scale, zero = affine_codes(low, high)
        zero = zero + first_code
        last_code = first_code + _LEVELS
        rounded = torch.fake_quantize_per_tensor_affine(values, scale, zero, first_code, last_code)
        ends = (first_code - zero) * scale, (last_code - zero) * scale
        ctx.save_for_backward(values, rounded, *ends)
        return rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        values, rounded, low, high = ctx.saved_tensors
        below, above = values < low, values > high
        inside = gradient.masked_fill(below | above, 0)
        # A wider range moves every code away from its zero, by its share of the range.
        rounding = ((rounded - values) * inside).sum() / (high - low)
        to_low = (gradient * below).sum() - rounding
        to_high = (gradient * above).sum() + rounding
        # The paper's factor; the batch does not count, so that its size changes no gradient.
        features = values.numel() // max(values.shape[0], 1) if values.dim() else 1
        factor = (max(features, 1) * _LEVELS) ** -0.5
        return inside, (to_low * factor).double(), (to_high * factor).double(), None
