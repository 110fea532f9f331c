"""Distances that tests of every part measure."""

from typing import Any

import numpy as np


def snr_db(signal: Any, other: Any) -> float:
    """Return the ratio of a signal to its difference from another, in dB."""
    error = float(np.square(np.subtract(signal, other, dtype=np.float64)).mean())
    return float(10 * np.log10(np.square(signal, dtype=np.float64).mean() / max(error, 1e-30)))
