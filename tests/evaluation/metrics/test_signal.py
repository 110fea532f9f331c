"""Distances between renderings."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tts_compress.audio import Audio
from tts_compress.evaluation.metrics import signal
from tts_compress.evaluation.metrics.signal import Health, check_health
from tts_compress.numerics.spectra import log_mel_distance


def snr_db(pairs: list[tuple[Audio, Audio]]) -> float | None:
    return signal.snr_db([signal.observe(before, after) for before, after in pairs])


def _with(audio: Audio, samples: npt.NDArray[np.floating]) -> Audio:
    return replace(audio, samples=samples.astype(np.float32))


def test_a_softer_copy_is_as_far_as_it_is_softer() -> None:
    """6 dB in every band are a distance of 6 dB."""
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    audio = Audio(samples=noise, sample_rate=16_000)
    assert pytest.approx(log_mel_distance(audio, _with(audio, noise * 10**-0.3)), abs=0.01) == 6.0


def test_a_longer_copy_is_aligned(chirp: Audio) -> None:
    """Half a hop of silence at the end is nearly nothing after alignment, and far without."""
    shifted = np.concatenate([chirp.samples[:8000], chirp.samples[7000:]])
    late = np.concatenate([np.zeros(1000, np.float32), chirp.samples])[:16_000]
    aligned = log_mel_distance(chirp, _with(chirp, shifted))
    unaligned = log_mel_distance(chirp, _with(chirp, late))
    assert 0.0 < aligned < 0.5 * unaligned


def test_equal_length_is_not_the_same_timing(chirp: Audio) -> None:
    """A frame moved from one symbol to another makes everything between them late.

    Compared frame by frame, one such utterance hid the SNR of all the others.
    """
    late = np.concatenate([chirp.samples[:4000], chirp.samples[3000:15_000]])
    before = replace(chirp, durations=np.array([4, 4, 8]))
    after = replace(_with(chirp, late), durations=np.array([5, 4, 7]))
    unmoved = replace(after, durations=before.durations)
    assert log_mel_distance(before, after) < 0.5 * log_mel_distance(before, unmoved)
    assert snr_db([(before, after)]) is None
    assert snr_db([(before, unmoved)]) is not None


def test_not_finite_candidates_have_a_finite_distance(chirp: Audio) -> None:
    """A gate on a number, not on NaN; health names the reason."""
    broken = _with(chirp, np.full(16_000, np.nan))
    assert 10.0 < log_mel_distance(chirp, broken) < 100.0


def test_rates_have_to_agree(chirp: Audio) -> None:
    """Bands of other rates are other bands."""
    with pytest.raises(ValueError, match="16000 and 8000 Hz"):
        log_mel_distance(chirp, replace(chirp, sample_rate=8000))


def test_snr_of_known_noise(chirp: Audio) -> None:
    """A tenth of the amplitude is 20 dB."""
    assert pytest.approx(snr_db([(chirp, _with(chirp, chirp.samples * 0.9))]), abs=0.001) == 20.0


def test_snr_ignores_pairs_of_other_length_and_is_none_without_noise(chirp: Audio) -> None:
    """Nothing to compare is None, never infinity."""
    shorter = _with(chirp, chirp.samples[:-1])
    softer = _with(chirp, chirp.samples * 0.9)
    assert snr_db([(chirp, chirp)]) is None
    assert snr_db([(chirp, shorter)]) is None
    assert snr_db([(chirp, _with(chirp, np.full(16_000, np.nan)))]) is None
    assert snr_db([(chirp, softer)]) == snr_db([(chirp, shorter), (chirp, softer)])


def test_the_sharpest_distance_is_of_the_same_timing_alone(chirp: Audio) -> None:
    changed = (0.5 * chirp.samples, chirp.samples[:-1000])
    softer, shorter = (signal.observe(chirp, _with(chirp, samples)) for samples in changed)
    run: Any = SimpleNamespace(observations=lambda _: [softer, shorter])
    found = signal._compute(run)
    assert found.same_timing_log_mel_distance_db == softer.spectra.distance_db
    assert (found.same_timing, found.equal_length) == (0.5, 0.5)


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
