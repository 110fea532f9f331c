"""Rounding that gradients pass through.

Forward, values fall on the grid of their codes. Backward, rounding counts as the identity and
clipping as what it is (the straight-through estimator); trained ranges get the gradients of
"Learned Step Size Quantization" (Esser et al., 2020, arXiv 1902.08153).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tts_compress.torch.layers.codes import activation_codes

_LEVELS = 255


def pass_through(values: Tensor, rounded: Tensor) -> Tensor:
    """Return `rounded`, with gradients as if it were `values`."""
    result: Tensor = _PassThrough.apply(values, rounded)  # type: ignore[no-untyped-call]
    return result


def round_affine(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return values rounded to 8 bits in a range.

    Gradients flow into what is not clipped, and into the range's ends if they require any.

    Args:
        values: FP32; the first axis is the batch.
        low: The smallest value that is kept, FP64, a scalar.
        high: The largest.
    """
    result: Tensor = _RoundAffine.apply(values, low, high)  # type: ignore[no-untyped-call]
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
    """One function in the place of a chain of small ones, each of which would keep a tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Tensor, high: Tensor) -> Tensor:
        step, zero = activation_codes(float(low), float(high))
        scale = torch.tensor(step)
        first, last = -zero, _LEVELS - zero
        # The very numbers of `torch.fake_quantize_per_tensor_affine`, whose loop is not vectorized
        # on processors.
        rounded = torch.mul(values, 1 / scale).round_().clamp_(first, last).mul_(scale)
        low, high = first * scale, last * scale
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(values, low, high, rounded)
        else:
            # As torch counts it, a value that rounds to the outermost codes is not clipped.
            half = (high - low) / _LEVELS / 2
            ctx.save_for_backward(values, low - half, high + half)
        return rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        values, low, high, *others = ctx.saved_tensors
        # Torch's kernel for this leaves the ends out; it is one pass where comparisons are five.
        below = torch.nextafter(low, torch.full_like(low, -torch.inf))
        above = torch.nextafter(high, torch.full_like(high, torch.inf))
        inside = torch.ops.aten.hardtanh_backward(gradient, values, float(below), float(above))
        if not others:
            return inside, None, None
        # A wider range moves every code away from its zero, by its share of the range.
        rounding = torch.dot((others[0] - values).flatten(), inside.flatten()) / (high - low)
        clipped = gradient - inside
        # A clipped value that is positive is above the range, which holds zero.
        to_high = torch.ops.aten.threshold_backward(clipped, values, 0).sum()
        to_low = clipped.sum() - to_high
        # The paper's factor; the batch does not count, so that its size changes no gradient.
        features = values.numel() // max(values.shape[0], 1) if values.dim() else 1
        factor = (max(features, 1) * _LEVELS) ** -0.5
        ends = (to_low - rounding) * factor, (to_high + rounding) * factor
        return inside, ends[0].double(), ends[1].double()
