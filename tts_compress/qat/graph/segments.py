"""Recorded calls cut along time, so that examples have one length and can be joined to batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import torch

from tts_compress.qat.task import Example

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Cut", "Segments", "measure_reach"]

_HEARD = 1e-5
"""What changes an output by less than this share of its peak is not part of what it is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How calls are cut, in frames of the first input's last axis."""

    frames: int
    """What each segment is for."""

    reach: int
    """What it has besides, before and behind: as far as the network hears."""

    @property
    def window(self) -> int:
        """How long a segment is."""
        return self.frames + 2 * self.reach

    def core(self, values: Tensor, example: Example) -> Tensor:
        """Return what of an example's output, or target, is computed from the whole of its context.

        Args:
            values: `[…, T]`, with as many values per frame as there are.
            example: A segment, of which both ends are left out, or a whole call, which is complete.
        """
        frames = example.inputs[0].shape[-1]
        if frames != self.window:
            return values
        per_frame = values.shape[-1] // frames
        return values[..., self.reach * per_frame : (self.reach + self.frames) * per_frame]


class Segments(Sequence[Example]):
    """Segments of calls, each cut when it is asked for.

    Args:
        calls: Whole calls. Tensors whose last axis is a multiple of the first input's are cut, the
            others stay whole.
        cut: Where to; calls of no more than a window stay whole.
    """

    def __init__(self, calls: Sequence[Example], cut: Cut) -> None:
        self._calls = tuple(calls)
        self._cut = cut
        self._places = [
            (number, start)
            for number, call in enumerate(self._calls)
            for start in _starts(call.inputs[0].shape[-1], cut)
        ]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        number, start = self._places[index]
        call = self._calls[number]
        frames = call.inputs[0].shape[-1]
        if frames <= self._cut.window:
            return call

        def part(values: Tensor) -> Tensor:
            length = values.shape[-1] if values.dim() > 1 else 1
            if length % frames or length < frames:
                return values
            per_frame = length // frames
            return values[..., start * per_frame : (start + self._cut.window) * per_frame]

        return Example(inputs=tuple(map(part, call.inputs)), targets=tuple(map(part, call.targets)))


def measure_reach(network: nn.Module, inputs: tuple[Tensor, ...]) -> int | None:
    """Return how many frames before and behind a frame a network computes it from.

    The frame in the middle is changed, and what changes with it is looked at.

    Args:
        network: In FP32.
        inputs: A long call; `(B, C, T)` first.

    Returns:
        Frames; None where the outputs do not follow the first input in time, or everything hangs
        on everything.
    """
    frames = inputs[0].shape[-1]
    middle = frames // 2
    changed = inputs[0].clone()
    changed[..., middle] += changed.std() + 1
    with torch.no_grad():
        before, after = network(*inputs), network(changed, *inputs[1:])
    reach = 0
    for one, other in zip(before, after, strict=True):
        if one.dim() < 2 or one.shape[-1] % frames or one.shape != other.shape:
            return None
        difference = (one - other).abs().flatten(0, -2).amax(0)
        heard = (difference > _HEARD * one.abs().amax()).nonzero().flatten()
        if not heard.numel():
            continue
        per_frame = one.shape[-1] // frames
        reach = max(
            reach, middle - int(heard[0]) // per_frame, int(heard[-1]) // per_frame - middle
        )
    return None if reach >= middle - 1 else reach + 1


def _starts(frames: int, cut: Cut) -> list[int]:
    """Return where segments begin so that every frame with its context is in one."""
    last = frames - cut.window
    if last <= 0:
        return [0]
    return sorted({*range(0, last, cut.frames), last})
