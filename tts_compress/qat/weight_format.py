"""How a weight is rounded: which of its values share a scale, and which codes are multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tts_compress.errors import QuantizationError
from tts_compress.numerics.neighbours import CODE_LIMIT
from tts_compress.torch.layers.codes import (
    GROUP_LIMIT,
    from_rows,
    group_scales,
    neighbour_scales,
    round_channels,
    round_groups,
)
from tts_compress.torch.layers.integer_convolution import transposed_phases

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.torch.layers.base import Geometry

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

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest code."""
        if self.group is not None:
            return -GROUP_LIMIT - 1, GROUP_LIMIT
        return -CODE_LIMIT, CODE_LIMIT

    def rows(self, weight: Tensor) -> Tensor:
        """Return a weight as `[channels, all else]`, or `[channels, groups, group]`.

        Raises:
            QuantizationError: The group does not divide a channel's values.
        """
        rows = self._by_channel(weight).flatten(1)
        if self.group is None:
            return rows
        if rows.shape[1] % self.group:
            raise QuantizationError(
                f"{rows.shape[1]} inputs are no multiple of the group {self.group}; "
                "give another group"
            )
        return rows.view(rows.shape[0], -1, self.group)

    def weight(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return the weight that `rows` made rows of, in the shape of another."""
        if self.phases is not None:
            return _from_phases(rows, self.phases)
        return from_rows(rows.flatten(1), like.shape, self.axis)

    def round(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes and scales as post-training quantization chooses them.

        Args:
            weight: FP32.

        Returns:
            int8 codes in the shape of `rows`, and scales, FP32 `[channels]`, or of groups bfloat16
            `[channels, groups]`.

        Raises:
            QuantizationError: A weight is not finite, or the group does not divide its inputs.
        """
        if self.group is None:
            channels = self._by_channel(weight)
            codes, scales = round_channels(channels, 0, multiplied=self.multiplied)
            return codes.flatten(1), scales
        rows = self.rows(weight)
        flat = rows.flatten(1)
        scales = group_scales(flat, self.group)
        return round_groups(flat, scales).view(rows.shape), scales

    def least_scales(self, weight: Tensor) -> Tensor | None:
        """Return the smallest scales that learning may choose, FP32 `[channels]`; None for any."""
        return neighbour_scales(self._by_channel(weight)) if self.multiplied else None

    def _by_channel(self, weight: Tensor) -> Tensor:
        """Return a weight as `[channels, inputs, ...]`."""
        if self.phases is not None:
            return transposed_phases(weight, self.phases)
        return weight.movedim(self.axis, 0)

    def stored(self, codes: Tensor, weight: Tensor) -> Tensor:
        """Return codes `[rows]` in the shape a compressed layer stores them in, unpacked.

        Args:
            codes: In the shape of `rows`.
            weight: What they are the codes of.
        """
        if self.phases is not None:
            return codes.view(codes.shape[0], weight.shape[0] // self.phases.groups, -1)
        if self.group is not None:
            return codes.flatten(1)
        return self.weight(codes, weight).contiguous()


def _from_phases(rows: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight that `transposed_phases` took apart; `rows` are its channels, flattened."""
    inputs, outputs, taps = geometry.shape
    stride, groups = geometry.stride, geometry.groups
    reach = -(-(taps + geometry.output_padding) // stride)
    order = (stride, outputs) if groups == 1 else (outputs, stride)
    parts = rows.view(groups, *order, inputs // groups, reach)
    # Back to [groups, inputs / groups, outputs, reach, stride], the earliest input first.
    parts = parts.permute(0, 3, 2, 4, 1) if groups == 1 else parts.permute(0, 3, 1, 4, 2)
    padded = torch.flip(parts, (3,)).reshape(inputs, outputs, reach * stride)
    return padded[..., :taps]
