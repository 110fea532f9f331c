"""Watching values go by, to choose the range that they are rounded in."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.numerics.histogram import Histogram, choose_range

if TYPE_CHECKING:
    from tts_compress.numerics.histogram import Range
    from tts_compress.recipes.recipe import Calibration

__all__ = ["HistogramObserver", "MovingAverageObserver", "Observer"]

_SAMPLE = 16_384
"""About as many values of a tensor are counted per call; its extremes are always exact."""


class Observer(nn.Module):
    """Sees tensors and tells a range; what it has seen is in its buffers, and so in checkpoints."""

    @abstractmethod
    def observe(self, values: Tensor) -> None:
        """Take note of values, any shape but empty.

        Raises:
            QuantizationError: A value is not finite.
        """

    @abstractmethod
    def range(self) -> Range | None:
        """Return the range that was chosen, which holds zero; None if nothing was seen."""


class HistogramObserver(Observer):
    """Chooses as post-training calibration does, from all that it has seen.

    Args:
        settings: How a range is made of a histogram.
    """

    def __init__(self, settings: Calibration) -> None:
        super().__init__()
        self.settings = settings
        empty = Histogram()
        self.counts: Tensor
        self.extent: Tensor
        self.register_buffer("counts", torch.from_numpy(empty.counts))
        self.register_buffer("extent", _extent(empty))

    def observe(self, values: Tensor) -> None:
        """Count a sample of the values."""
        seen = self._histogram()
        low, high = (float(limit) for limit in torch.aminmax(values))
        step = max(values.numel() // _SAMPLE, 1)
        seen.add(values.flatten()[::step].float().cpu().numpy(), low, high)
        self.counts.copy_(torch.from_numpy(seen.counts))
        self.extent.copy_(_extent(seen))

    def range(self) -> Range | None:
        """Return the range that the settings choose."""
        seen = self._histogram()
        return None if seen.low > seen.high else choose_range(seen, self.settings)

    def _histogram(self) -> Histogram:
        seen = Histogram()
        seen.counts = self.counts.cpu().numpy().copy()
        seen.span, seen.low, seen.high = self.extent.tolist()
        return seen


def _extent(seen: Histogram) -> Tensor:
    return torch.tensor([seen.span, seen.low, seen.high], dtype=torch.float64)


class MovingAverageObserver(Observer):
    """Follows the extremes of each tensor, so that what was seen long ago is forgotten.

    Args:
        momentum: The share of a range that the newest tensor decides.
    """

    def __init__(self, momentum: float = 0.01) -> None:
        super().__init__()
        self.momentum = momentum
        self.extremes: Tensor
        nothing = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64)
        self.register_buffer("extremes", nothing)

    def observe(self, values: Tensor) -> None:
        """Move the range towards the extremes of the values."""
        newest = torch.stack(torch.aminmax(values)).double()
        if not torch.isfinite(newest).all():
            raise QuantizationError("an observer met values that are not finite")
        is_first = not torch.isfinite(self.extremes).all()
        moved = newest if is_first else torch.lerp(self.extremes, newest, self.momentum)
        self.extremes.copy_(moved)

    def range(self) -> Range | None:
        """Return the averaged extremes."""
        low, high = self.extremes.tolist()
        return None if low > high else (min(low, 0.0), max(high, 0.0))
