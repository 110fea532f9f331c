"""How a weight is rounded: which of its values share a scale, and how large codes may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tts_compress.errors import QuantizationError
from tts_compress.layers.codes import (
    GROUP_LIMIT,
    as_rows,
    from_rows,
    group_scales,
    round_channels,
    round_groups,
)
from tts_compress.layers.integer_convolution import transposed_phases

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.layers.base import Geometry

__all__ = ["WeightFormat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """The codes that a compressed layer stores for a weight.

    Raises:
        QuantizationError: It has both groups and phases.
    """

    axis: int = 0
    """Of the output channels; 1 in a transposed convolution."""

    limit: int = 127
    """The largest magnitude of a code; four-bit codes have their own."""

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
        return -self.limit, self.limit

    def rows(self, weight: Tensor) -> Tensor:
        """Return a weight as `[channels, all else]`, or `[channels, groups, group]`.

        Raises:
            QuantizationError: The group does not divide a channel's values.
        """
        if self.phases is not None:
            return transposed_phases(weight, self.phases).flatten(1)
        rows = as_rows(weight, self.axis)
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
        rows = self.rows(weight)
        if self.group is None:
            return round_channels(rows, 0, self.limit)
        flat = rows.flatten(1)
        scales = group_scales(flat, self.group)
        return round_groups(flat, scales).view(rows.shape), scales

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
