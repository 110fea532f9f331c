"""Speak phoneme ids chunk by chunk, with onnxruntime and numpy alone: 16-bit sound on stdout.

tts-compress export out/demo-int8 --stream --output out/demo-stream
python examples/stream/play.py out/demo-stream < ids.txt | aplay -f S16_LE -r 16000
"""

import json
import sys
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort


def open_session(path: Path, threads: int = 1) -> Any:
    """Open a graph that takes little memory beside its weights, which stay in their file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # its plan for a second call would keep a second block
    options.add_session_config_entry("session.use_env_allocators", "1")  # one arena for all
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Player:
    """A voice in the stages that `tts-compress export --stream` wrote into a folder."""

    def __init__(self, folder: Path | str, threads: int = 1) -> None:
        kind, memory = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtMemType.DEFAULT
        info = ort.OrtMemoryInfo("Cpu", kind, 0, memory)
        ort.create_and_register_allocator(info, ort.OrtArenaCfg(0, 0, 1 << 22, -1))  # doubles
        files = Path(folder) / "stream"
        self.config = json.loads((files / "stream.json").read_text())
        self.encoder = open_session(files / self.config["encoder"], threads)
        self.stages = self.config["stages"]
        for stage in self.stages:  # threads share columns out, 16 at a time
            stage["least"] = ceil(stage["least"] * (1 if threads == 1 else 1.25 * threads))
        self.runs = [open_session(files / stage["graph"], threads).run for stage in self.stages]
        self.hop = prod(stage["hop"] for stage in self.stages)
        self.pace = 0.0  # seconds of a frame, measured with the first utterance

    def speak(self, ids: list[int]) -> Iterator[Any]:
        """Yield the sound of phoneme ids in chunks, float32 in [-1, 1]."""
        known = {"ids": [ids], "length": [len(ids)]}
        feeds = {
            name: np.array(known[value] if isinstance(value, str) else value, dtype)
            for name, (value, dtype) in self.config["inputs"].items()
        }
        first = self.stages[0]["reads"]
        sides = {side for stage in self.stages for side in stage["sides"]}
        names = sorted({*first, *sides} - feeds.keys())
        self.sides = feeds | dict(zip(names, self.encoder.run(names, feeds), strict=True))
        self.kept = [frames := self.sides[first[0]], *[None] * len(self.stages)]
        self.begins, self.done = [0] * len(self.stages), [0] * len(self.stages)
        self.sizes = [frames.shape[self.stages[0]["axis"]]]
        for stage in self.stages:
            self.sizes.append(self.sizes[-1] * stage["hop"] + stage["extra"])
        end, left, frame_s = 0, 0.0, self.hop / self.config["sample_rate"]
        while end < self.sizes[0]:
            count, most = self.config["first_frames"], self.config["most_frames"]
            if self.pace and end:  # half of the time until the sound runs out
                count = int(min(most, max(count, left / 2 / self.pace)))
            elif self.pace and self.pace > frame_s:  # slower than speech: wait for most of it
                count = max(count, ceil(self.sizes[0] * (1 - frame_s / self.pace)))
            count = min(count, self.sizes[0] - end)
            end += count
            started = perf_counter()
            self.advance(len(self.stages) - 1, end * self.hop if end < self.sizes[0] else 1 << 60)
            spent = perf_counter() - started
            self.pace = spent / count
            left += count * frame_s - (spent if left else 0)
            sound, self.kept[-1] = self.kept[-1], None
            if sound is not None:
                yield sound.reshape(-1)

    def advance(self, number: int, end: int) -> None:
        """Let a stage compute at least up to a step of its output."""
        stage, size, done = self.stages[number], self.sizes[number], self.done[number]
        whole = end >= self.sizes[number + 1] or size < stage["least"]
        until = size if whole else min(size, -(-end // stage["hop"]))
        if until <= done:
            return
        until = min(size, done + (until - done) * stage["ahead"]) if done else until
        last = min(size, until + stage["after"])
        if number:
            self.advance(number - 1, last)
        begin = max(0, min(done - stage["before"], size - (last == size) * stage["least"]))
        begin += -begin % stage["multiple"]
        old, axis = self.kept[number], stage["axis"]
        given = cut(old, axis, begin - self.begins[number], last - self.begins[number])
        if last < size:
            short = max(stage["least"] - (last - begin), (begin - last) % stage["multiple"])
            given = np.pad(given, [(0, short if a == axis else 0) for a in range(given.ndim)])
        feeds = {side: self.sides[side] for side in stage["sides"]} | {stage["reads"][0]: given}
        (made,) = self.runs[number](stage["returns"], feeds)
        stop = None if until == size else (until - begin) * stage["hop"]
        made = cut(made, stage["to"], (done - begin) * stage["hop"], stop)
        if (before := self.kept[number + 1]) is not None:
            made = np.concatenate([before, made], stage["to"])
        self.kept[number + 1], self.done[number] = made, until
        surplus = until - max(stage["before"], stage["least"]) - self.begins[number]
        if surplus > 0:
            self.kept[number] = cut(old, axis, surplus, None).copy()
            self.begins[number] += surplus


def cut(array: Any, axis: int, begin: int, end: int | None) -> Any:
    """Return a stretch of an array along an axis."""
    return array[(slice(None),) * axis + (slice(begin, end),)]


if __name__ == "__main__":
    player = Player(sys.argv[1])
    for line in sys.stdin:
        for chunk in player.speak([int(number) for number in line.split()]):
            sys.stdout.buffer.write((np.clip(chunk, -1, 1) * 32767).astype("<i2").tobytes())
            sys.stdout.buffer.flush()
