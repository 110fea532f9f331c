"""Broken audio is counted by what is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

from tts_compress.audio import Audio
from tts_compress.evaluation.metrics.signal import Health, check_health

_GOOD = 0.1 * np.sin(np.arange(16_000) / 5)
_CLIPPED = np.where(np.arange(16_000) < 20, 1.0, _GOOD)
_PEAKS = np.where(np.arange(16_000) < 16, -1.0, _GOOD)
_NAN = np.where(np.arange(16_000) == 5, np.nan, _GOOD)
_INFINITE = np.where(np.arange(16_000) == 5, np.inf, _GOOD)


@pytest.mark.parametrize(
    ("samples", "problems"),
    [
        pytest.param(_GOOD, {}, id="good"),
        pytest.param(_GOOD * 0.04, {"silent": 1}, id="below -50 dB"),
        pytest.param(_GOOD * 0.05, {}, id="above -50 dB"),
        pytest.param(_CLIPPED, {"clipped": 1}, id="clipped"),
        pytest.param(_PEAKS, {}, id="a few peaks"),
        pytest.param(_NAN, {"not_finite": 1}, id="NaN"),
        pytest.param(_INFINITE, {"not_finite": 1}, id="infinite"),
        pytest.param(_GOOD[:1599], {"empty": 1}, id="too short"),
        pytest.param(_GOOD[:1600], {}, id="long enough"),
        pytest.param(_GOOD[:0], {"empty": 1, "silent": 1}, id="empty"),
        pytest.param(_GOOD * np.nan, {"not_finite": 1, "silent": 1}, id="all NaN"),
    ],
)
def test_each_problem(
    samples: np.ndarray[tuple[int], np.dtype[np.float64]], problems: dict[str, int]
) -> None:
    audio = Audio(samples=samples.astype(np.float32), sample_rate=16_000)
    nothing = dict.fromkeys(Health.model_fields, 0)
    assert Health(**(nothing | problems)) == check_health(audio)
