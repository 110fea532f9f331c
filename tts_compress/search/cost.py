"""Costs to make small: bytes of the graph, time on one thread, or memory of a fresh process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from tts_compress.errors import ModelError
from tts_compress.folders import temporary_folder
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session

_ROUNDS = 5


class Objective(StrEnum):
    """A cost that a search makes small."""

    SIZE = "size"
    LATENCY = "latency"
    MEMORY = "memory"


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
        turns = [(before(), after()) for _ in range(_ROUNDS)]
        fastest = np.min(turns, axis=0)  # [2, texts]
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
