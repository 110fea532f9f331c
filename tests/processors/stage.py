"""Graphs played with the same inputs on several processors, and how near to FP32 they are there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tests.processors.emulation import Processor
from tts_compress.onnx.session import Feeds

FP32 = "fp32"
"""The name of the graph that the others are compared with."""

DURATIONS = "durations"
_AUDIO = "output"
_PLAYER = Path(__file__).with_name("player.py")
_FRAME = 320
"""Samples, 20 ms at 16 kHz."""

_MARGIN_DB = {"haswell": 0.5, "skylake": 0.5, "cortex-a76": 1.5}
"""FP32 sums in another order turn a few codes, which shifts the mean over frames by
tenths. ARM64 also fuses multiplication and addition and so rounds what lies halfway between two
codes to the other one; with a slope of 0.1 that is every tenth code of a leaky rectifier. Measured:
at most 0.0 and 0.9; products that saturate cost 0.4 to 14."""

_HALF_DB = 45
"""`fp16` where the processor itself computes in half precision, as ARM64 does and x86 does not:
measured 48 and more, and 61 with FP32 arithmetic."""

_BRIEF = 12
"""Frames of an emulated voice: some processors take a second for each in FP32."""

Array = npt.NDArray[np.float32]


class Stage:
    """Some graphs and the inputs that each of them is played with, in files.

    Args:
        folder: For everything that is written.
        graphs: By name; their first output counts.
        feeds: A call each, with what any of the graphs reads.
    """

    def __init__(
        self, folder: Path, graphs: Mapping[str, onnx.ModelProto], feeds: Sequence[Feeds]
    ) -> None:
        self.names = tuple(graphs)
        self._folder = folder
        self._calls = len(feeds)
        self._played: dict[str, dict[str, list[Array]]] = {}
        for name, graph in graphs.items():
            save_graph(graph, folder / f"{name}.onnx")
        for call, values in enumerate(feeds):
            named: dict[str, Any] = dict(values)
            np.savez(folder / f"{call}.npz", **named)

    def play(self, processor: Processor) -> dict[str, list[Array]]:
        """Return each graph's outputs for each call on a processor, run once."""
        if processor.name not in self._played:
            outputs = {
                (name, call): self._folder / f"{processor.name}-{name}-{call}.npz"
                for name in self.names
                for call in range(self._calls)
            }
            jobs = [
                part
                for (name, call), output in outputs.items()
                for part in (self._folder / f"{name}.onnx", self._folder / f"{call}.npz", output)
            ]
            processor.run([_PLAYER, *jobs])
            found: dict[str, list[Array]] = {name: [] for name in self.names}
            for (name, _), output in outputs.items():
                with np.load(output) as values:
                    found[name].append(values[values.files[0]].reshape(-1))
            self._played[processor.name] = found
        return self._played[processor.name]


def least_db(native_db: float, processor: Processor, scheme: str) -> float:
    """Return the least SNR of a scheme on a processor, from the one it has natively."""
    least = native_db - _MARGIN_DB[processor.name]
    return min(least, _HALF_DB) if scheme == "fp16" else least


def save_graph(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph without the parts that none of its outputs needs, which a runtime would run."""
    kept = onnx.ModelProto()
    kept.CopyFrom(graph)
    needed = {value.name for value in kept.graph.output}
    nodes = []
    for node in reversed(kept.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    _keep(kept.graph.node, list(reversed(nodes)))
    for values in (kept.graph.input, kept.graph.initializer):
        _keep(values, [value for value in values if value.name in needed])
    onnx.save(kept, path)


def speaking(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return a voice's graph with the frames of each id as an input and audio as the output."""
    changed, decided = _copy(graph)
    for node in changed.graph.node:
        for place, name in enumerate(node.input):
            if name == decided:
                node.input[place] = DURATIONS
    given = helper.make_tensor_value_info(DURATIONS, TensorProto.FLOAT, [None, None, None])
    changed.graph.input.append(given)
    _keep(changed.graph.output, [v for v in changed.graph.output if v.name == _AUDIO])
    return changed


def deciding(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return a voice's graph whose output is the frames that it gives to each id."""
    changed, decided = _copy(graph)
    _keep(changed.graph.output, [helper.make_empty_tensor_value_info(decided)])
    return changed


def told_briefly(call: Feeds) -> Feeds:
    """Return a call of a voice that gives a frame to each of the first ids, and none to others."""
    ids = call["input"].shape[-1]
    return {**call, DURATIONS: (np.arange(ids) < _BRIEF).astype(np.float32).reshape(1, 1, -1)}


def frame_snr_db(reference: Sequence[Array], candidate: Sequence[Array]) -> float:
    """Return the ratio of signals to their differences: the mean over all frames' decibels.

    Frames that are 40 dB below the loudest do not count. Over all energy a single vowel could
    outweigh everything else: a rounding may turn the phase of a hoarse one.
    """
    pairs = zip(reference, candidate, strict=True)
    energies = [(_frames(one), _frames(np.subtract(one, two))) for one, two in pairs]
    signal, error = (np.concatenate(parts) for parts in zip(*energies, strict=True))
    heard = signal > 1e-4 * signal.max()
    return float(np.mean(10 * np.log10(signal[heard] / np.maximum(error[heard], 1e-20))))


def _frames(signal: Array) -> npt.NDArray[np.float64]:
    """Return the energy of each frame; the last one may be shorter."""
    starts = np.arange(0, len(signal), _FRAME)
    return np.add.reduceat(np.square(signal, dtype=np.float64), starts)


def _copy(graph: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Return a copy of a voice's graph, and the name of the frames that it decides on."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    (ceil,) = (node for node in changed.graph.node if node.op_type == "Ceil")
    return changed, ceil.output[0]


def _keep(field: Any, values: list[Any]) -> None:
    """Put other values into a repeated field of a graph."""
    kept = list(values)
    del field[:]
    field.extend(kept)
