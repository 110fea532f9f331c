"""Distances that tests of every part measure, and the part of a report that no two runs share."""

from typing import Any

import numpy as np

from tts_compress.evaluation.metric import find_metrics

TIMED = {metric.name for metric in find_metrics() if metric.group == "cost"} - {"size"} | {"stages"}
"""Parts of a report with times and memory, which differ from run to run."""


def snr_db(signal: Any, other: Any) -> float:
    """Return the ratio of a signal to its difference from another, in dB."""
    error = float(np.square(np.subtract(signal, other, dtype=np.float64)).mean())
    return float(10 * np.log10(np.square(signal, dtype=np.float64).mean() / max(error, 1e-30)))
