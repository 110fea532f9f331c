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
        alpha = self.alpha.view(1, -1) if last else self.alpha.view(-1, 1)
        alpha = alpha.to(signal.dtype)
        factor = (alpha + 1e-9).reciprocal()
        for source, target in zip(plain, outputs, strict=True):
            self._fill(source, target, alpha, factor)
        return outputs.transpose(-1, -2) if last else outputs

    def _fill(self, source: Tensor, target: Tensor, alpha: Tensor, factor: Tensor) -> None:
        """Write the activation of `[time, channels]` or `[channels, time]` in blocks of rows."""
        rows = max(_BLOCK // source.shape[1], 1)
        scratch = torch.empty_like(source[:rows])
        per_row = alpha.shape[0] > 1
        for start in range(0, source.shape[0], rows):
            block = slice(start, start + rows)
            values = source[block]
            sines = scratch[: values.shape[0]]
            torch.mul(values, alpha[block] if per_row else alpha, out=sines)
            sines.sin_().square_()
            scale = factor[block] if per_row else factor
            torch.addcmul(values, sines, scale, out=target[block])


def replace_snakes(root: nn.Module) -> int:
    """Replace every Snake activation of a known package, in place; return their number."""
    count = 0
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            kind = type(child)
            if (kind.__module__, kind.__name__) in _UPSTREAM:
                assert isinstance(child.alpha, nn.Parameter)
                setattr(parent, name, Snake(child.alpha).train(child.training))
                count += 1
    return count
