"""Rounding that gradients pass through.

Forward, values fall on the grid of their codes. Backward, rounding counts as the identity and
clipping as what it is (the straight-through estimator); trained ranges get the gradients of
"Learned Step Size Quantization" (Esser et al., 2020, arXiv 1902.08153).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

__all__ = ["affine_codes", "pass_through", "round_affine", "round_to_range"]

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
    result: Tensor = _PassThrough.apply(values, rounded)  # type: ignore[no-untyped-call]
    return result


def round_affine(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return values rounded to 8 bits in a fixed range; gradients flow into what is not clipped.

    Args:
        values: FP32.
        low: The smallest value that is kept, FP64, a scalar.
        high: The largest.
    """
    result: Tensor = _RoundAffine.apply(values, low, high)  # type: ignore[no-untyped-call]
    return result


def round_to_range(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return values rounded to 8 bits; gradients flow into them and into the range's ends.

    Args:
        values: FP32; the first axis is the batch.
        low: The smallest value that is kept, FP64, a scalar.
        high: The largest.
    """
    result: Tensor = _RoundToRange.apply(values, low, high)  # type: ignore[no-untyped-call]
    return result


class _PassThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, rounded: Tensor) -> Tensor:
        del ctx, values
        return rounded.clone()  # an input may not be returned as it is

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


class _RoundAffine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Tensor, high: Tensor) -> Tensor:
        rounded, first, last = _rounded(values, low, high)
        # As torch counts it, what rounds to the outermost codes is not clipped.
        half = (last - first) / _LEVELS / 2
        ctx.save_for_backward(values, first - half, last + half)
        return rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _unclipped(gradient, *ctx.saved_tensors), None, None


class _RoundToRange(torch.autograd.Function):
    """One function in the place of a chain of small ones, each of which would keep a tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Tensor, high: Tensor) -> Tensor:
        rounded, *ends = _rounded(values, low, high)
        ctx.save_for_backward(values, rounded, *ends)
        return rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, rounded, low, high = ctx.saved_tensors
        inside = _unclipped(gradient, values, low, high)
        # A wider range moves every code away from its zero, by its share of the range.
        rounding = torch.dot((rounded - values).flatten(), inside.flatten()) / (high - low)
        clipped = gradient - inside
        # What is clipped and positive is above the range, which holds zero.
        above = torch.ops.aten.threshold_backward(clipped, values, 0).sum()
        to_low, to_high = clipped.sum() - above - rounding, above + rounding
        # The paper's factor; the batch does not count, so that its size changes no gradient.
        features = values.numel() // max(values.shape[0], 1) if values.dim() else 1
        factor = (max(features, 1) * _LEVELS) ** -0.5
        return inside, (to_low * factor).double(), (to_high * factor).double()


def _rounded(values: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return values on the grid, and its ends.

    The very numbers of `torch.fake_quantize_per_tensor_affine`, whose loop is not vectorized on
    processors.
    """
    scale, zero = affine_codes(low, high)
    first, last = -int(zero), _LEVELS - int(zero)
    codes = torch.mul(values, 1 / scale).round_().clamp_(first, last)
    return codes.mul_(scale), first * scale, last * scale


def _unclipped(gradient: Tensor, values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the gradient where values are in a range, its ends included, and zero elsewhere."""
    # Torch's kernel for this leaves the ends out; it is one pass where comparisons are five.
    below = torch.nextafter(low, torch.full_like(low, -torch.inf))
    above = torch.nextafter(high, torch.full_like(high, torch.inf))
    kept: Tensor = torch.ops.aten.hardtanh_backward(gradient, values, float(below), float(above))
    return kept
