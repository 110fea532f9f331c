"""Pauses inside the speech are counted; its beginning and end, and consonants, are none."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Audios
from tts_compress.evaluation.metrics.pacing import METRICS, measure_floors, measure_pauses

_RATE = 16_000


def _speech(*silences_s: float) -> Audio:
    """Return half seconds of noise with silences between, and a second of it around them."""
    random = np.random.default_rng(0)
    pieces = [np.zeros(_RATE)]
    for silence_s in (*silences_s, 1.0):
        pieces += [0.1 * random.standard_normal(_RATE // 2), np.zeros(round(silence_s * _RATE))]
    hiss = 1e-4 * random.standard_normal(sum(map(len, pieces)))
    return Audio(samples=(np.concatenate(pieces) + hiss).astype(np.float32), sample_rate=_RATE)


@pytest.mark.parametrize(
    ("silences_s", "count", "seconds"),
    [((), 0, 0.0), ((0.3,), 1, 0.3), ((0.2, 0.08, 0.5), 2, 0.7), ((0.14, 0.15), 1, 0.15)],
)
def test_silences_inside_are_counted(
    silences_s: tuple[float, ...], count: int, seconds: float
) -> None:
    found, length_s = measure_pauses(_speech(*silences_s))
    assert found == count
    assert length_s == pytest.approx(seconds, abs=0.021 * max(1, count))


def test_both_models_are_compared() -> None:
    before, after = _speech(0.3), _speech(0.3, 0.5)
    observe = METRICS[2].observe
    assert observe is not None
    seen = observe(Audios(reference=before, candidate=after, other_seed=before))
    run: Any = SimpleNamespace(observations=lambda _: [seen], blocks=[0])
    counts, lengths = (metric.compute(run) for metric in METRICS[2:])
    assert (counts.reference, counts.candidate, counts.delta) == (1.0, 2.0, 1.0)
    assert lengths.delta == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("samples", [[], [0.0] * 9000, [np.nan] * 9000, [1.0] * 9000])
def test_any_audio_is_measured(samples: list[float]) -> None:
    audio = Audio(samples=np.array(samples, np.float32), sample_rate=8_000)
    assert measure_pauses(audio) == (0, 0.0)


def test_the_floor_of_pauses_is_compared() -> None:
    """An utterance with pauses has a rise; one without pauses has none."""
    before = _speech(0.3)
    noise = 1e-3 * np.random.default_rng(1).standard_normal(len(before.samples))
    after = Audio(samples=(before.samples + noise).astype(np.float32), sample_rate=_RATE)
    steady = Audio(samples=np.sin(np.arange(_RATE)).astype(np.float32), sample_rate=_RATE)
    pairs = [(before, after), (steady, steady)]
    seen = [measure_floors(Audios(reference=a, candidate=b, other_seed=a)) for a, b in pairs]
    run: Any = SimpleNamespace(observations=lambda _: seen, blocks=[0, 1])
    found = METRICS[1].compute(run)
    assert 10.0 < found.delta < 25.0
    assert found.candidate == pytest.approx(found.reference + found.delta)
