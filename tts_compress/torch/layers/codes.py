"""Weights and ranges as small integers and scales."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tts_compress.numerics.ranges import LEVELS

GROUP_LIMIT = 7
"""The largest magnitude of a four-bit code."""


def from_rows(rows: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Return the weight of a shape whose channels on `axis` are rows `[channels, all else]`."""
    others = [extent for d, extent in enumerate(shape) if d != axis]
    return rows.view(-1, *others).movedim(0, axis)


def group_scales(weight: Tensor, group: int) -> Tensor:
    """Return the scale of each group of inputs that rounds its largest weight to the limit.

    Args:
        weight: FP32, `[outputs, inputs]`; `inputs` is a multiple of `group`.
        group: Inputs that share a scale.

    Returns:
        bfloat16, the type of torch's four-bit kernel, `[outputs, inputs / group]`.
    """
    peaks = weight.reshape(weight.shape[0], -1, group).abs().amax(-1)
    scales = torch.where(peaks > 0, peaks / GROUP_LIMIT, torch.ones_like(peaks))
    return scales.to(torch.bfloat16).clamp_min(torch.finfo(torch.bfloat16).tiny)


def round_groups(weight: Tensor, scales: Tensor) -> Tensor:
    """Return four-bit codes, int8 in [-8, 7], of a weight `[outputs, inputs]`.

    Args:
        weight: FP32, finite.
        scales: `[outputs, groups]`.
    """
    grouped = weight.reshape(*scales.shape, -1)
    codes = (grouped / scales.float().unsqueeze(-1)).round()
    return codes.clamp(-GROUP_LIMIT - 1, GROUP_LIMIT).to(torch.int8).reshape(weight.shape)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Return two codes per byte, the earlier in the low half.

    Args:
        codes: int8 in [-8, 7], `[..., n]` with even `n`.

    Returns:
        uint8, `[..., n / 2]`.
    """
    unsigned = (codes + 8).to(torch.uint8)
    return unsigned[..., 0::2] | (unsigned[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Return the codes that `pack_nibbles` packed, int8."""
    low, high = packed & 0x0F, packed >> 4
    return (torch.stack((low, high), -1).flatten(-2).to(torch.int8)) - 8


def activation_codes(low: float, high: float) -> tuple[float, int]:
    """Return scale and zero point of `uint8` codes for a range, extended to include zero.

    torch's kernels take the scale in float64, unlike graphs (`numerics.ranges`).
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / LEVELS, float(torch.finfo(torch.float32).tiny))
    return scale, round(-low / scale)
