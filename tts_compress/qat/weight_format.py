"""How a weight is rounded: which of its values share a scale, and which codes are multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tts_compress.errors import QuantizationError
from tts_compress.torch.layers.codes import from_rows, group_scales, round_channels, round_groups
from tts_compress.torch.layers.integer_convolution import transposed_phases

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.torch.layers.geometry import Geometry

__all__ = ["WeightFormat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """The codes that a compressed layer stores for a weight.

    Raises:
        QuantizationError: It has both groups and phases.
    """

    axis: int = 0
    """Of the output channels; 1 in a transposed convolution."""

    multiplied: bool = False
    """Whether integer kernels multiply the 8-bit codes, which no processor's may overflow."""

    group: int | None = None
    """Four bits in groups of so many values of a channel; None for 8 bits."""

    phases: Geometry | None = None
    """Of a transposed convolution that is computed in integers: each phase of its output is a
    channel of its own there, with a scale of its own."""

    def __post_init__(self) -> None:
        if self.group is not None and self.phases is not None:
            raise QuantizationError("no integer kernel has four-bit groups; leave out group")

    def round(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes and scales as post-training quantization chooses them.

        Args:
            weight: FP32.

        Returns:
            int8 codes, `[channels, all else]` or `[channels, groups, group]`, and scales: FP32
            `[channels]`, or of groups bfloat16 `[channels, groups]`.

        Raises:
            QuantizationError: A weight is not finite, or the group does not divide its inputs.
        """
        channels = weight.movedim(self.axis, 0)
        if self.phases is not None:
            channels = transposed_phases(weight, self.phases)
        if self.group is None:
            codes, scales = round_channels(channels, 0, multiplied=self.multiplied)
            return codes.flatten(1), scales
        rows = channels.flatten(1)
        if rows.shape[1] % self.group:
            raise QuantizationError(
                f"{rows.shape[1]} inputs are no multiple of the group {self.group}; "
                "give another group"
            )
        scales = group_scales(rows, self.group)
        return round_groups(rows, scales).view(*scales.shape, self.group), scales

    def weight(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return the weight that `round` made such rows of, in the shape of another."""
        if self.phases is not None:
            return _from_phases(rows, self.phases)
        return from_rows(rows.flatten(1), like.shape, self.axis)


def _from_phases(rows: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight that `transposed_phases` took apart; `rows` are its channels, flattened."""
    inputs, outputs, kernel_size = geometry.shape
    stride, groups = geometry.stride, geometry.groups
    phase_size = -(-(kernel_size + geometry.output_padding) // stride)
    order = (stride, outputs) if groups == 1 else (outputs, stride)
    parts = rows.view(groups, *order, inputs // groups, phase_size)
    # Back to [groups, inputs / groups, outputs, phase, stride], the earliest input first.
    parts = parts.permute(0, 3, 2, 4, 1) if groups == 1 else parts.permute(0, 3, 1, 4, 2)
    padded = torch.flip(parts, (3,)).reshape(inputs, outputs, phase_size * stride)
    return padded[..., :kernel_size]
