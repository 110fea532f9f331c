"""The Snake activation of neural codecs, computed in blocks that fit a processor's cache."""

import torch
from torch import Tensor, nn

from tts_compress.torch.layers.geometry import plain_view

_BLOCK = 1 << 16
"""Values of a block: with what is computed from them, they stay in a processor's cache."""

_UPSTREAM = frozenset(
    {
        ("dac.nn.layers", "Snake1d"),
        ("transformers.models.dac.modeling_dac", "Snake1d"),
    }
)
"""Modules that compute this function, with a parameter `alpha` `[1, channels, 1]`."""


class Snake(nn.Module):
    """`x + sin²(αx) / α` for each channel (Ziyin et al., 2020, arXiv 2006.08195), as DAC has it.

    Written as the formula stands, each step walks through memory once more; beside convolutions in
    integers that is a large part of a codec's time.

    Args:
        alpha: `[1, channels, 1]`.
    """

    def __init__(self, alpha: nn.Parameter) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, signal: Tensor) -> Tensor:
        """Return the activation of `[batch, channels, time]`."""
        if torch.is_grad_enabled() or signal.dim() != 3 or signal.is_cuda:
            return signal + torch.sin(self.alpha * signal).square() / (self.alpha + 1e-9)
        plain = plain_view(signal)
        last = plain is not signal  # channels lie last
        plain = plain.contiguous()
        outputs = torch.empty_like(plain)
        alpha = self.alpha.view((1, -1) if last else (-1, 1)).to(signal.dtype)
        factor = (alpha + 1e-9).reciprocal().expand(plain.shape[1:])
        alpha = alpha.expand(plain.shape[1:])
        rows = max(_BLOCK // plain.shape[2], 1)
        scratch = torch.empty_like(plain[0, :rows])
        for source, target in zip(plain, outputs, strict=True):
            for start in range(0, len(source), rows):
                block = slice(start, start + rows)
                values = source[block]
                sines = scratch[: len(values)]
                torch.mul(values, alpha[block], out=sines)
                sines.sin_().square_()
                torch.addcmul(values, sines, factor[block], out=target[block])
        return outputs.transpose(-1, -2) if last else outputs


def replace_snake(module: nn.Module) -> Snake | None:
    """Return the equal of a Snake activation of a known package; None for any other module."""
    kind = type(module)
    if (kind.__module__, kind.__name__) not in _UPSTREAM:
        return None
    assert isinstance(module.alpha, nn.Parameter)
    return Snake(module.alpha)
