"""Speak phoneme ids with graphs of fixed sizes: what a host does around an NPU, in numpy.

tts-compress export demo --fixed 64,128,256 --output out/demo-fixed
python examples/fixed/play.py out/demo-fixed < ids.txt | aplay -f S16_LE -r 16000

The encoder runs on the processor. `open_graph` is the place for another runtime: what it opens has
fixed sizes throughout.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Run = Callable[[Mapping[str, Any]], Any]
"""Returns the sound of a graph's inputs."""


def open_graph(path: Path) -> Run:
    """Open a graph of fixed sizes."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))[0]


class Player:
    """A voice that `tts-compress export --fixed` wrote into a folder."""

    def __init__(self, folder: Path | str, opened: Callable[[Path], Run] = open_graph) -> None:
        files = Path(folder) / "fixed"
        self.config = json.loads((files / "fixed.json").read_text())
        self.encoder = ort.InferenceSession(str(files / self.config["encoder"]))
        self.graphs = self.config["graphs"]
        self.runs = [opened(files / graph["graph"]) for graph in self.graphs]

    def speak(self, ids: list[int], **inputs: Any) -> Any:
        """Return the sound of phoneme ids, float32 in [-1, 1]; `inputs` replace the voice's own."""
        config, known = self.config, {"ids": [ids], "length": [len(ids)]}
        feeds = {}
        for name, (usual, dtype) in config["inputs"].items():
            value = known[usual] if isinstance(usual, str) else usual
            feeds[name] = np.array(inputs.get(name, value), dtype)
        wanted = [n for n in (*config["reads"], *config["sides"]) if n not in feeds]
        made = feeds | dict(zip(wanted, self.encoder.run(wanted, feeds), strict=True))
        reads = {n: np.moveaxis(made[n], r["axis"], -1) for n, r in config["reads"].items()}
        return self.sound(reads, {name: made[name] for name in config["sides"]})

    def sound(self, reads: Mapping[str, Any], sides: Mapping[str, Any]) -> Any:
        """Return the sound of what the encoder made; the last axis is time."""
        config, (name, frames) = self.config, next(iter(reads.items()))
        length = frames.shape[-1]
        fitting = [n for n, graph in enumerate(self.graphs) if graph["frames"] >= length]
        number = fitting[0] if fitting else len(self.graphs) - 1
        size, hop = self.graphs[number]["frames"], config["hop"]
        if fitting:
            return self.window(number, reads, sides)[: length * hop + config["extra"]]
        if config["around"] is None:  # it takes statistics of the whole utterance
            raise ValueError(f"{length} frames, and the largest graph has {size}; split the text")
        (before, after), parts, done = config["around"], [], 0
        while done < length:  # in windows, each with what it needs on either side
            begin = max(0, min(done - before, length - size))
            until = length if begin + size == length else begin + size - after
            sound = self.window(number, {name: frames[..., begin : begin + size]}, sides)
            end = None if until == length else (until - begin) * hop
            parts.append(sound[(done - begin) * hop : end])
            done = until
        return np.concatenate(parts)

    def window(self, number: int, reads: Mapping[str, Any], sides: Mapping[str, Any]) -> Any:
        """Return the sound of as many frames as a graph takes, or fewer."""
        graph, length = self.graphs[number], next(iter(reads.values())).shape[-1]
        feeds = dict(sides)
        for name, values in reads.items():
            rate = self.config["reads"][name]
            missing = graph["frames"] * rate["hop"] + rate["extra"] - values.shape[-1]
            padding = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
            feeds[name] = np.moveaxis(np.pad(values, padding), -1, rate["axis"])
        for name, mask in graph["masks"].items():
            steps = np.arange(mask["shape"][mask["axis"]]) < length * mask["hop"] + mask["extra"]
            feeds[name] = steps.astype(mask["dtype"]).reshape(mask["shape"])
        return self.runs[number](feeds).reshape(-1)


if __name__ == "__main__":
    sound = Player(sys.argv[1]).speak([int(word) for word in sys.stdin.read().split()])
    sys.stdout.buffer.write((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
