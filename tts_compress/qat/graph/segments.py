"""Recorded calls cut along time, so that examples have one length and can be joined to batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tts_compress.qat.task import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

__all__ = ["Cut", "measure_receptive_field"]

_NOTICEABLE = 1e-5
"""A change of an output by less than this share of its peak does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How calls are cut, in frames of the first input's last axis."""

    frames: int
    """Frames that each segment is for."""

    context: int
    """Frames that it has besides, before and behind: the network's receptive field."""

    @property
    def window(self) -> int:
        """The length of a segment."""
        return self.frames + 2 * self.context

    def core(self, values: Tensor, example: Example) -> Tensor:
        """Return the part of an example's output or target `[…, T]` that has all of its context.

        Of a segment that is without both ends; a whole call is complete.
        """
        frames = example.inputs[0].shape[-1]
        if frames != self.window:
            return values
        per_frame = values.shape[-1] // frames
        return values[..., self.context * per_frame : (self.context + self.frames) * per_frame]

    def segments(self, call: Example) -> Iterator[Example]:
        """Yield segments of a call, such that every frame with its context is in one.

        Tensors whose last axis is a multiple of the first input's are cut, the others stay whole,
        and so does a call that is no longer than a window.
        """
        frames = call.inputs[0].shape[-1]
        last = frames - self.window
        if last <= 0:
            yield call
            return

        def part(values: Tensor, start: int) -> Tensor:
            length = values.shape[-1] if values.dim() > 1 else 1
            if length % frames or length < frames:
                return values
            per_frame = length // frames
            return values[..., start * per_frame : (start + self.window) * per_frame]

        for start in sorted({*range(0, last, self.frames), last}):
            yield Example(
                inputs=tuple(part(values, start) for values in call.inputs),
                targets=tuple(part(values, start) for values in call.targets),
            )


def measure_receptive_field(network: nn.Module, inputs: tuple[Tensor, ...]) -> int | None:
    """Return how many frames before and behind a frame a network computes it from.

    The frame in the middle of a long call is changed; its outputs show how far that reaches. None
    where they do not follow the first input `(B, C, T)` in time, or depend on all of it.
    """
    frames = inputs[0].shape[-1]
    middle = frames // 2
    changed = inputs[0].clone()
    changed[..., middle] += changed.std() + 1
    with torch.no_grad():
        before, after = network(*inputs), network(changed, *inputs[1:])
    field = 0
    for one, other in zip(before, after, strict=True):
        if one.dim() < 2 or one.shape[-1] % frames or one.shape != other.shape:
            return None
        difference = (one - other).abs().flatten(0, -2).amax(0)
        reached = (difference > _NOTICEABLE * one.abs().amax()).nonzero().flatten()
        if reached.numel():
            first, last = (int(place) * frames // one.shape[-1] for place in reached[[0, -1]])
            field = max(field, middle - first, last - middle)
    return None if field >= middle - 1 else field + 1
