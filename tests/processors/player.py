"""Runs ONNX graphs on the processor that runs this file; it needs numpy and onnxruntime only.

`python player.py GRAPH FEEDS OUTPUT [GRAPH FEEDS OUTPUT …]`: a graph's file, an `.npz` of its
inputs by name, and the `.npz` that its outputs go to. A graph is opened once for all calls that
follow each other.
"""

from __future__ import annotations

import sys
from functools import lru_cache

import numpy as np
import onnxruntime


def _play(graph: str, feeds: str, output: str) -> None:
    session = _open(graph)
    names = [value.name for value in session.get_outputs()]
    with np.load(feeds) as given:
        wanted = {value.name: given[value.name] for value in session.get_inputs()}
    np.savez(output, **dict(zip(names, session.run(names, wanted), strict=True)))


@lru_cache(maxsize=1)
def _open(graph: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    rest = iter(sys.argv[1:])
    for job in zip(rest, rest, rest, strict=True):
        _play(*job)
