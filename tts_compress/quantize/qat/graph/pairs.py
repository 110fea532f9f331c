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

from tts_compress.quantize.qat.fake_quantize import FakeQuantize

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.quantize.qat.graph.quantizers import GridOf

__all__ = ["PairFakeQuantize", "ProductFakeQuantize", "SumFakeQuantize"]

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
        (one, _), (other, _) = self.left.step_and_zero(), self.right.step_and_zero()
        ratio = np.float32(np.float32(one) * np.float32(other)) / np.float32(step)
        product = left.div(one).round() * right.div(other).round()
        return (product * float(ratio) + zero).round()


class SumFakeQuantize(PairFakeQuantize):
    """`QLinearAdd`: a · r + (b · s + (zero - (r · zero of a + s · zero of b))), fused, in FP32."""

    def _codes(self, left: Tensor, right: Tensor, step: float, zero: int) -> Tensor:
        (one, first), (other, second) = self.left.step_and_zero(), self.right.step_and_zero()
        r, s = np.float32(one) / np.float32(step), np.float32(other) / np.float32(step)
        zeros = np.float32(float(r) * first + float(s * np.float32(second)))
        shift = np.float32(zero) - zeros
        a = left.div(one).round().double() + first
        b = right.div(other).round().double() + second
        # A fused operation rounds once; in FP64 nothing is rounded before that.
        return (a * float(r) + (b * float(s) + float(shift)).float()).float().round()
