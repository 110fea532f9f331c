"""Modules that round as a converted graph does where nothing is observed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    FakeQuantize,
)
from tts_compress.qat.rounding import pass_through

__all__ = [
    "FixedFakeQuantize",
    "GridOf",
    "SlopeFakeQuantize",
    "StoredFakeQuantize",
]

_LEVELS = 255


class FixedFakeQuantize(FakeQuantize):
    """8 bits on a grid that nothing changes.

    Args:
        scale: The step.
        zero: The code of zero, counted from the lowest.
    """

    def __init__(self, scale: float, zero: int) -> None:
        super().__init__()
        self.scale = scale
        self.zero = zero

    def forward(self, values: Tensor) -> Tensor:
        """Return values, rounded or not."""
        if not self.fake_quant_enabled[0]:
            return values
        return torch.fake_quantize_per_tensor_affine(values, self.scale, self.zero, 0, _LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridOf:
    """The values that a quantizer rounds to, times a factor."""

    quantizer: ActivationFakeQuantize | FixedFakeQuantize
    factor: float

    def step_and_zero(self) -> tuple[float, int]:
        """Return the step, and the code of zero, counted from the lowest."""
        if isinstance(self.quantizer, FixedFakeQuantize):
            return self.quantizer.scale * self.factor, self.quantizer.zero
        low, high = self.quantizer.limits()
        if high <= low:  # nothing but zeros
            return self.factor, 0
        step = (high - low) / _LEVELS
        # Graphs hold steps in FP32.
        return float(np.float32(step)) * self.factor, round(-low / step)


class SlopeFakeQuantize(FakeQuantize):
    """The answer of a LeakyRelu in the codes of its input.

    Some multiples of a slope such as 0.1 lie in the middle between two codes, so which of
    them it is hangs on how onnxruntime's `QLinearAdd` rounds; that is done here step by step.

    Args:
        grid: The codes of the input.
        slope: Of the LeakyRelu.
    """

    def __init__(self, grid: GridOf, slope: float) -> None:
        super().__init__()
        self.grid = grid
        self.slope = slope

    def forward(self, values: Tensor) -> Tensor:
        """Return values, rounded or not.

        Args:
            values: What the LeakyRelu answered to values on the grid.
        """
        if not self.fake_quant_enabled[0]:
            return values
        step, zero = self.grid.step_and_zero()
        codes = _slope_codes(step, zero, self.slope).to(values.device)
        real = values.detach()
        index = torch.where(real < 0, real / self.slope, real).div(step).round().long() + zero
        answered = (codes[index.clamp(0, _LEVELS)] - zero) * step
        return pass_through(values, answered.to(values.dtype))


def _slope_codes(step: float, zero: int, slope: float) -> Tensor:
    """Return the code that each code becomes, FP32, [256].

    `QLinearAdd` adds a code of zero: it computes a · r + (z · 1 + (z - (r · z + z))) in FP32, with
    r the quotient of both steps and fused additions.
    """

    def single(value: float) -> float:
        return float(torch.tensor(value, dtype=torch.float64).float())

    ratio = single(single(step * slope) / single(step))
    shift = single(zero - single(single(ratio * zero) + zero))
    shift = single(zero + shift)
    codes = torch.arange(_LEVELS + 1, dtype=torch.float64)
    small = (codes * ratio + shift).float().round().clamp(0, _LEVELS)
    return torch.maximum(small, codes.float())


class StoredFakeQuantize(FakeQuantize):
    """A weight that is stored as a 16-bit float.

    Args:
        kind: float16 or bfloat16.
    """

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight, rounded or not."""
        if not self.fake_quant_enabled[0]:
            return weight
        return pass_through(weight, weight.detach().to(self.kind).to(weight.dtype))
