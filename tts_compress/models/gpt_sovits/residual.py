"""The decoder's residual blocks, without a copy of the sound for every step of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812  its usual name
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.models.gpt_sovits.package import Official

__all__ = ["ResidualBlock", "open_residuals"]


class ResidualBlock(nn.Module):
    """Pairs of convolutions that add to what goes in, each behind a leaky ReLU.

    It computes what upstream's `ResBlock1` does, bit by bit. Upstream makes a new tensor at every
    step, which integer convolutions leave more of the time to.

    Args:
        block: Upstream's, whose convolutions become this one's.
        slope: Of the ReLU below zero.
    """

    def __init__(self, block: Any, slope: float) -> None:
        super().__init__()
        self.convs1: nn.ModuleList = block.convs1
        self.convs2: nn.ModuleList = block.convs2
        self.slope = slope

    def forward(self, x: Tensor, x_mask: Tensor | None = None) -> Tensor:
        """Return `[batch, channels, time]`; `x` stays as it is.

        Args:
            x: `[batch, channels, time]`.
            x_mask: What is multiplied with before every convolution; broadcasts to `x`.
        """
        for first, second in zip(self.convs1, self.convs2, strict=True):
            inner = first(_masked(F.leaky_relu(x, self.slope), x_mask))
            # Nobody else has what a convolution has just made.
            inner = second(_masked(F.leaky_relu(inner, self.slope, inplace=True), x_mask))
            x = inner.add_(x)
        return _masked(x, x_mask)


def open_residuals(official: Official, root: nn.Module) -> None:
    """Put a `ResidualBlock` in the place of each of upstream's below a module, in place."""
    modules = official.checkout.load("module.modules")
    for holder in list(root.modules()):
        for name, child in list(holder.named_children()):
            if type(child) is modules.ResBlock1:
                block = ResidualBlock(child, modules.LRELU_SLOPE)
                setattr(holder, name, block.train(child.training))


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask
