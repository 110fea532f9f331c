"""Costs to make small: bytes of the graph, time on one thread, or memory of a fresh process.

The time of each group of layers is of onnxruntime's profiles of whole graphs.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from tts_compress.compression.workbench import Workbench
from tts_compress.errors import ModelError
from tts_compress.evaluation.bootstrap import take_turns
from tts_compress.evaluation.metric import Record
from tts_compress.folders import temporary_folder
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.profile import group_ms
from tts_compress.onnx.session import Feeds, open_session, run_session
from tts_compress.recipes.recipe import Rule
from tts_compress.search.damage import Listener
from tts_compress.search.options import Objective

_ROUNDS = 5


UNITS = {
    Objective.SIZE: "bytes of the graph",
    Objective.LATENCY: "share of FP32's time",
    Objective.MEMORY: "peak bytes of a process",
}

Cost = Callable[[onnx.ModelProto], float]


def open_cost(objective: Objective, reference: onnx.ModelProto, feeds: Sequence[Feeds]) -> Cost:
    """Return the function that measures a converted graph.

    Args:
        objective: What is measured.
        reference: The FP32 graph, which takes turns where times are compared.
        feeds: Inputs of each text, with fed noise.
    """
    if objective == Objective.SIZE:
        return lambda graph: float(len(graph.SerializeToString()))
    if objective == Objective.MEMORY:
        return lambda graph: _peak_bytes(graph, feeds)
    before = _timed(reference, feeds)
    before()

    def compare(graph: onnx.ModelProto) -> float:
        after = _timed(graph, feeds)
        after()
        fastest = np.min(take_turns((before, after), _ROUNDS), axis=0)  # [2, texts]
        return float(fastest[1].sum() / fastest[0].sum())

    return compare


def _timed(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> Callable[[], Any]:
    """Return a run of all texts: seconds of each."""
    session = open_session(feed_noise(model), "the graph", 1)

    def run() -> list[float]:
        spent = []
        for call in feeds:
            start = perf_counter()
            run_session(session, call, "the graph")
            spent.append(perf_counter() - start)
        return spent

    return run


def _peak_bytes(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> float:
    """Return the peak memory of a process that opens a graph and runs it."""
    with temporary_folder() as folder:
        graph, inputs = Path(folder, "graph.onnx"), Path(folder, "inputs.npz")
        graph.write_bytes(feed_noise(model).SerializeToString())
        arrays = {f"{i}/{name}": value for i, f in enumerate(feeds) for name, value in f.items()}
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        command = [sys.executable, "-P", "-m", "tts_compress.search.peak", str(graph), str(inputs)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ModelError(f"the graph's memory cannot be measured: {done.stderr.strip()[-200:]}")
    return float(done.stdout)


class Times(Record):
    """Milliseconds of the kernels of each group, over all texts."""

    reference: dict[str, float]
    """In FP32; under an empty name those of all other operators."""

    formats: dict[str, dict[str, float]]
    """Where every group has the format, by its name."""

    @property
    def reference_ms(self) -> float:
        """Time of all kernels in FP32."""
        return sum(self.reference.values())

    def saved_ms(self, group: str, form: str) -> float:
        """Return the time that a group takes less of in a format than in FP32."""
        return self.reference[group] - self.formats[form][group]


def profile_formats(
    bench: Workbench,
    listener: Listener,
    groups: Sequence[str],
    rules: Mapping[str, Sequence[Rule]],
) -> Times:
    """Profile a voice in FP32 and with everything in each format.

    A layer alone in integers also pays for the way into them and out again; with its neighbours it
    does not. So formats are compared with all layers in them.

    Args:
        bench: Converts the voice.
        listener: Has the texts that are spoken.
        groups: Their names.
        rules: The rules that give each format to every group.
    """
    found = {}
    for name, own in rules.items():
        whole = bench.recipe.model_copy(update={"component": tuple(own)})
        found[name] = group_ms(bench.convert(whole), listener.feeds, groups)
    return Times(reference=group_ms(bench.model.graph(), listener.feeds, groups), formats=found)
