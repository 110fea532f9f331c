"""Where a component begins and ends, by the names of `torch.ao.quantization`.

Integer layers round what they are given and answer in FP32, so a component of them takes and gives
FP32, whatever mixed precision is trained in; where the first thing behind a border is codes, as in
a graph of integer operators, its stub rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from typing import Self

    from tts_compress.qat.fake_quantize import ActivationFakeQuantize

__all__ = ["Bordered", "DeQuantStub", "QuantStub"]


class QuantStub(nn.Module):
    """What enters: FP32, and rounded where a fake quantizer is given.

    Args:
        fake_quant: Rounds every tensor of real numbers; None where layers round for themselves.
    """

    def __init__(self, fake_quant: ActivationFakeQuantize | None = None) -> None:
        super().__init__()
        self.fake_quant = fake_quant

    def forward(self, values: Any) -> Any:
        """Return arguments, in any nesting; what is no tensor of real numbers as it is."""

        def enter(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return value.float() if self.fake_quant is None else self.fake_quant(value.float())

        return tree_map(enter, values)


class DeQuantStub(nn.Module):
    """What leaves: FP32."""

    def forward(self, values: Any) -> Any:
        """Return outputs, in any nesting; what is no tensor of real numbers as it is."""

        def leave(value: Any) -> Any:
            is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.float() if is_real else value

        return tree_map(leave, values)


class Bordered(nn.Module):
    """A component between its stubs; its attributes are those of the component.

    It is always in evaluation: dropout would make the student guess noise that its teacher never
    had, and statistics of batches are no part of what is deployed.

    Args:
        module: The component.
        quant: The stub in front.
        dequant: The stub behind.
    """

    def __init__(
        self, module: nn.Module, quant: QuantStub | None = None, dequant: DeQuantStub | None = None
    ) -> None:
        super().__init__()
        self.quant = quant or QuantStub()
        self.module = module
        self.dequant = dequant or DeQuantStub()
        self.eval()

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what the component returns."""
        arguments, keywords = self.quant((arguments, keywords))
        return self.dequant(self.module(*arguments, **keywords))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation."""
        del mode
        return super().train(mode=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Special methods are of the component alone, and it is not there yet while copied.
            if name == "module" or name.startswith("__"):
                raise
            return getattr(self.module, name)
