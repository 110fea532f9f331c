"""Sums and products of codes, rounded as onnxruntime's integer operators round them.

Where both steps are simple multiples of each other, or a gate is saturated, results lie in the
middle between two codes again and again, and which one it is hangs on the last bit. Training does
not care; but where no gradients are asked for, the codes are the very ones of the finished graph.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch

from tts_compress.qat.fake_quantize import FakeQuantize

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.qat.graph.quantizers import GridOf

__all__ = [
    "LeakySumFakeQuantize",
    "PairFakeQuantize",
    "ProductFakeQuantize",
    "SumFakeQuantize",
]

_LEVELS = 255


class PairFakeQuantize(FakeQuantize):
    """What an operator makes of two tensors of codes.

    Args:
        result: The codes of the result.
        left: Those of the first input.
        right: Those of the second.
    """

    def __init__(self, result: GridOf, left: GridOf, right: GridOf) -> None:
        super().__init__()
        self.result = result
        self.left = left
        self.right = right

    def forward(self, values: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Return what the operator made of `left` and `right`, rounded or not.

        Args:
            values: It, in real numbers.
            left: The first input.
            right: The second.
        """
        rounded: Tensor = self.result.quantizer(values)
        if torch.is_grad_enabled() or not self.result.quantizer.fake_quant_enabled[0]:
            return rounded
        step, zero = self.result.step_and_zero()
        codes = self._codes(left.detach(), right.detach(), step, zero).clamp(0, _LEVELS)
        return ((codes - zero) * step).to(values.dtype)

    @abstractmethod
    def _codes(self, left: Tensor, right: Tensor, step: float, zero: int) -> Tensor:
        """Return codes, not yet clipped."""


class ProductFakeQuantize(PairFakeQuantize):
    """`QLinearMul`: the integer product times a ratio of steps, plus zero, is rounded to even."""

    def _codes(self, left: Tensor, right: Tensor, step: float, zero: int) -> Tensor:
        (one, first), (other, second) = self.left.step_and_zero(), self.right.step_and_zero()
        ratio = np.float32(np.float32(one) * np.float32(other)) / np.float32(step)
        product = (_codes_of(left, one, first) - first) * (_codes_of(right, other, second) - second)
        return (product * float(ratio) + zero).round()


class SumFakeQuantize(PairFakeQuantize):
    """`QLinearAdd`; see `_sum`."""

    def _codes(self, left: Tensor, right: Tensor, step: float, zero: int) -> Tensor:
        return _sum(self, (left, right), (step, zero), 1.0)


class LeakySumFakeQuantize(PairFakeQuantize):
    """What a LeakyRelu makes of a sum: the larger of two `QLinearAdd` with different steps.

    Args:
        result: The codes of the result.
        left: Those of the first summand.
        right: Those of the second.
        factor: What the sum is multiplied by.
        slope: Of the LeakyRelu.
    """

    def __init__(
        self, result: GridOf, left: GridOf, right: GridOf, *, factor: float, slope: float
    ) -> None:
        super().__init__(result, left, right)
        self.factors = factor, factor * slope

    def _codes(self, left: Tensor, right: Tensor, step: float, zero: int) -> Tensor:
        sides = (_sum(self, (left, right), (step, zero), factor) for factor in self.factors)
        return torch.maximum(*sides)


def _codes_of(values: Tensor, step: float, zero: int) -> Tensor:
    """Return codes, counted from the lowest, of values that may not be rounded yet."""
    return (values.div(step).round() + zero).clamp(0, _LEVELS)


def _sum(
    pair: PairFakeQuantize, values: tuple[Tensor, Tensor], code: tuple[float, int], factor: float
) -> Tensor:
    """Return the codes of a sum times a factor: a · r + (b · s + shift), fused, in FP32.

    r and s are ratios of steps, and the shift is zero - (r · zero of a + s · zero of b).
    """
    (one, first), (other, second) = pair.left.step_and_zero(), pair.right.step_and_zero()
    step, zero = np.float32(code[0]), code[1]
    r, s = np.float32(one * factor) / step, np.float32(other * factor) / step
    zeros = np.float32(float(r) * first + float(s * np.float32(second)))
    shift = np.float32(zero) - zeros
    a = _codes_of(values[0], one, first).double()
    b = _codes_of(values[1], other, second).double()
    # A fused operation rounds once; in FP64 nothing is rounded before that.
    return (a * float(r) + (b * float(s) + float(shift)).float()).float().round()
