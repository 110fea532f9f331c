"""Distances that tests of every part measure, and the part of a report that no two runs share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.evaluation.metric import find_metrics

TIMED = {metric.name for metric in find_metrics() if metric.group == "cost"} - {"size"} | {"stages"}
"""Parts of a report with times and memory, which differ from run to run."""


def snr_db(signal: Any, other: Any) -> float:
    """Return the ratio of a signal to its difference from another, in dB."""
    before, after = np.asarray(signal, np.float64), np.asarray(other, np.float64)
    error = np.square(before - after).mean()
    return float(10 * np.log10(np.square(before).mean() / max(error, 1e-30)))


_PEAK = """
import json, sys
import numpy as np, onnxruntime
from tts_compress.processes import peak_bytes, status_bytes
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
idle = status_bytes("VmRSS")
session = onnxruntime.InferenceSession(sys.argv[1], options)
session.run(None, dict(np.load(sys.argv[2])))
print(json.dumps(peak_bytes() - idle))
"""


def graph_bytes(graph: Path, feeds: Path) -> int:
    """Return the memory that a process takes to open a graph and run it on an `.npz`, one thread.

    Beyond what it has after its imports. The test is skipped where the system does not tell both.
    """
    if sys.platform != "linux":
        pytest.skip("no other system tells both figures")
    command = [sys.executable, "-c", _PEAK, str(graph), str(feeds)]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
