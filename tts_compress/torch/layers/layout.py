"""Which of a signal's axes lies last in memory.

Integer convolutions want channels last and answer so. Elementwise kernels of torch are much slower
on a tensor `[batch, channels, time]` that lies so than on its transposed view, which
is a plain one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["channels_lie_last", "plain_view"]


def channels_lie_last(signal: Tensor) -> bool:
    """Return whether a signal `[..., channels, time]` is stored as `[..., time, channels]`."""
    return not signal.is_contiguous() and signal.transpose(-1, -2).is_contiguous()


def plain_view(signal: Tensor) -> Tensor:
    """Return the view of a signal, transposed if need be, whose elements lie in order."""
    return signal.transpose(-1, -2) if channels_lie_last(signal) else signal
