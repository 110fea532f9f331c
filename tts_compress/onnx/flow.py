"""One utterance on its way through stages, chunk by chunk, and how long its chunks are.

What a stage has computed is kept as far as later chunks need it; beyond the ends of the utterance
each operator pads as in the whole. So every value that leaves is the whole's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.onnx.stages import Stage

Arrays = list[npt.NDArray[Any]]
Run = Callable[[Mapping[str, npt.NDArray[Any]]], Arrays]
"""Runs a stage on its inputs by name."""

_MARGIN = 0.5
"""Share of the time that is left until the sound runs out which a chunk may take."""


class Flow:
    """An utterance of which the first stage's whole input is there.

    Args:
        stages: The stages, in their order.
        runs: What runs each.
        first: The whole input of the first stage.
        sides: The tensors without time that stages read, by name.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        runs: Sequence[Run],
        first: Arrays,
        sides: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        self._stages, self._runs, self._sides = stages, runs, sides
        self._kept: list[Arrays] = [first, *([] for _ in stages)]
        self._begins = [0] * len(stages)
        self._done = [0] * len(stages)
        self._sizes = [int(first[0].shape[stages[0].axis])]
        for stage in stages:
            self._sizes.append(stage.length(self._sizes[-1]))

    @property
    def frames(self) -> int:
        """Steps of the first stage's input."""
        return self._sizes[0]

    def until(self, frame: int) -> npt.NDArray[Any]:
        """Return the sound that follows what was returned before, at least up to a frame.

        Empty where the frames before held it all: a centred Vocos cuts off its last frame.
        """
        hop = prod(stage.hop for stage in self._stages)
        end = self._sizes[-1] if frame >= self.frames else frame * hop
        self._advance(len(self._stages) - 1, end)
        kept, self._kept[-1] = self._kept[-1], []
        return kept[0].reshape(-1) if kept else np.zeros(0, np.float32)

    def _advance(self, number: int, end: int) -> None:
        """Have a stage compute at least up to a step of its output."""
        stage, size, done = self._stages[number], self._sizes[number], self._done[number]
        whole = end >= self._sizes[number + 1] or size < stage.least
        until = size if whole else min(size, -(-end // stage.hop))
        if until <= done:
            return
        if done:
            until = min(size, done + (until - done) * stage.ahead)
        last = min(size, until + stage.after)
        if number:
            self._advance(number - 1, last)
        begin = max(0, done - stage.before)
        if last == size:
            begin = max(0, min(begin, size - stage.least))
        begin += -begin % stage.multiple
        output = self._run(number, begin, last)
        stop = None if until == size else (until - begin) * stage.hop
        output = [_cut(array, stage.to, (done - begin) * stage.hop, stop) for array in output]
        old = self._kept[number + 1]
        pairs = zip(old or output, output, strict=True)
        self._kept[number + 1] = [np.concatenate(p, stage.to) for p in pairs] if old else output
        self._done[number] = until
        self._forget(number, until - max(stage.before, stage.least))

    def _run(self, number: int, begin: int, last: int) -> Arrays:
        """Run a stage on some steps of its input, with zeros behind those that are not the last."""
        stage, offset, steps = self._stages[number], self._begins[number], last - begin
        is_end = last == self._sizes[number]
        short = 0 if is_end else max(stage.least - steps, -steps % stage.multiple)
        feeds = {name: self._sides[name] for name in stage.sides}
        for name, array in zip(stage.reads, self._kept[number], strict=True):
            chunk = _cut(array, stage.axis, begin - offset, last - offset)
            if short > 0:
                pads = [(0, short if axis == stage.axis else 0) for axis in range(chunk.ndim)]
                chunk = np.pad(chunk, pads)
            feeds[name] = chunk
        return self._runs[number](feeds)

    def _forget(self, number: int, needed: int) -> None:
        """Drop a stage's input before a step."""
        surplus = needed - self._begins[number]
        if surplus > 0:
            axis = self._stages[number].axis
            self._kept[number] = [
                _cut(array, axis, surplus, None).copy() for array in self._kept[number]
            ]
            self._begins[number] = needed


def _cut(array: npt.NDArray[Any], axis: int, begin: int, end: int | None) -> npt.NDArray[Any]:
    return array[(slice(None),) * axis + (slice(begin, end),)]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that a chunk takes: some to start, and some for each frame."""

    start_s: float
    frame_s: float

    def seconds(self, frames: int) -> float:
        """Return the seconds of a chunk."""
        return self.start_s + self.frame_s * frames


def chunk_ends(
    frames: int, pace: Pace, frame_s: float, *, first: int, most: int, ahead_s: float = 0.0
) -> Iterator[int]:
    """Yield the frames at which chunks end, so that sound never runs out while it is played.

    The first chunk is the shortest behind which the next comes in time; on a machine slower than
    speech that is most of the utterance. Later ones grow with the time that is left.

    Args:
        frames: Frames of the utterance.
        pace: What chunks take here.
        frame_s: Seconds of sound of a frame.
        first: Fewest frames of the first chunk.
        most: Most frames that are computed at once; they bound the memory.
        ahead_s: Seconds of earlier sound that are still being played.
    """
    gain = frame_s - pace.frame_s
    if gain > 0:
        end = ceil(pace.start_s / gain)
    else:  # all but what is computed while the rest is played
        starts = (frames / most + 1) * pace.start_s
        end = ceil(frames - (frame_s * (frames - most) - starts) / pace.frame_s)
    least, left, end = max(first, end), ahead_s, 0
    while end < frames:
        spare = int((left * _MARGIN - pace.start_s) / max(pace.frame_s, 1e-9))
        count = max(least, min(most, spare)) if gain > 0 or not end else most
        count = min(frames - end, count)
        left = max(left - pace.seconds(count), 0.0) + count * frame_s
        end += count
        yield end
