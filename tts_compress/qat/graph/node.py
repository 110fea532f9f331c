"""What is rounded where one node of a graph computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tts_compress.qat.graph.pairs import PairFakeQuantize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from tts_compress.qat.fake_quantize import WeightFakeQuantize
    from tts_compress.qat.graph.quantizers import GridOf

__all__ = ["CodeProducts", "NodeQuantizers"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeProducts:
    """How a convolution adds up products of codes.

    Sums of integers are exact; those of the real numbers that they stand for differ in the last bit
    with their order, and some fall on the other side of a rounding. So where no gradients are asked
    for the integers are multiplied.
    """

    input: GridOf
    """The codes of its input."""

    stride: int = 1
    """Of a transposed one, whose phases have scales of their own; 1 of any other."""

    skip: int = 0
    """Samples that are left out before the first, of a transposed one."""

    output: GridOf | None = None
    """The codes of its result; None of a real one."""

    def units(self, scales: Tensor) -> Tensor:
        """Return what one counts in the sums, FP64 `[channels, phases in the order of samples]`.

        Args:
            scales: Of the weight, `[phases · channels]`.
        """
        step, _ = self.input.step_and_zero()
        units = scales.double() * step
        return units.view(self.stride, -1).T.roll(-self.skip, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeQuantizers:
    """What is rounded where one node computes."""

    inputs: Mapping[int, nn.Module] = field(default_factory=dict)
    """Of the activations, and of the weight unless it is rounded to integers, by position."""

    weight: WeightFakeQuantize | None = None
    weight_position: int = 1
    products: CodeProducts | None = None
    """Of a convolution in integers."""

    output: nn.Module | None = None
    besides: tuple[str, ...] = ()
    """Of a LeakyRelu that reads a sum: what was added up."""

    def compute(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        values: list[Tensor | None],
        besides: list[Tensor | None],
    ) -> tuple[Tensor, ...]:
        """Return the node's outputs, of which the first is rounded.

        Args:
            function: Computes the node.
            values: Its inputs, not rounded.
            besides: The tensors that `besides` names, not rounded.
        """
        arguments = list(values)
        for position, module in self.inputs.items():
            arguments[position] = module(values[position])
        if self.weight is not None:
            given = values[self.weight_position]
            assert given is not None
            arguments[self.weight_position] = self.weight(given)
            exact = not torch.is_grad_enabled() and bool(self.weight.fake_quant_enabled[0])
            if exact and self.products is not None:
                made = _multiply(self.products, self.weight, function, arguments, given)
                return (self._rounded(made, arguments),)
        first, *others = function(*arguments)
        return self._rounded(first, besides or arguments), *others

    def _rounded(self, made: Tensor, operands: list[Tensor | None]) -> Tensor:
        if self.output is None:
            return made
        pair = operands if isinstance(self.output, PairFakeQuantize) else ()
        rounded: Tensor = self.output(made, *pair)
        return rounded


def _multiply(
    products: CodeProducts,
    quantizer: WeightFakeQuantize,
    function: Callable[..., tuple[Tensor, ...]],
    arguments: list[Tensor | None],
    weight: Tensor,
) -> Tensor:
    """Return the result of a convolution, computed on integers."""
    inputs, rounded, *rest = arguments
    assert inputs is not None
    assert rounded is not None
    codes, scales = quantizer.codes(weight)
    step, _ = products.input.step_and_zero()
    form = quantizer.form
    whole = form.weight(codes.float().flatten(1), weight) if products.stride > 1 else codes.float()
    (sums,) = function((inputs / step).round(), whole)
    units = products.units(scales)
    bias = rest[0] if rest else None
    shift = torch.zeros_like(units)
    if bias is not None:
        shift = bias.double().unsqueeze(1).expand_as(units) / units
    if products.output is None:
        return _by_phase(_by_phase(sums.double(), shift, torch.add), units, torch.mul).float()
    totals = _by_phase(sums.double(), shift.round(), torch.add).float()
    step, _ = products.output.step_and_zero()
    # As the kernel does it: one factor, of FP32 quotients, from sums to codes.
    factors = units.float() / torch.tensor(step, dtype=torch.float32)
    return _by_phase(totals, factors, torch.mul).round() * step


def _by_phase(
    values: Tensor, factors: Tensor, function: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Join values `[B, C, …, T]` and what belongs to each channel and phase of T."""
    channels, phases = factors.shape
    shape = [channels, *[1] * (values.dim() - 2), phases]
    split = values.reshape(*values.shape[:-1], -1, phases)
    return function(split, factors.reshape(shape)).flatten(-2)
