"""Log-mel spectra."""

import numpy as np
import pytest

from tts_compress.audio import Audio
from tts_compress.numerics.spectra import FLOOR_DB, MELS, log_mel, mel_filters, window_length


@pytest.mark.parametrize(
    ("rate", "window"),
    [(8_000, 512), (16_000, 1024), (22_050, 1024), (24_000, 1024), (44_100, 2048), (48_000, 2048)],
)
def test_every_mel_band_sees_some_of_the_spectrum(rate: int, window: int) -> None:
    """A filter without bins would compare floor with floor."""
    assert window == window_length(rate)
    if rate >= 16_000:
        assert mel_filters(rate, window, MELS).sum(axis=1).min() > 0.0


def test_a_full_scale_tone_is_at_zero_decibels_in_its_band() -> None:
    """The scale is that of a full-scale sine."""
    time_s = np.arange(16_000) / 16_000
    filters = mel_filters(16_000, 1024, MELS)
    band = 40
    frequency = np.fft.rfftfreq(1024, 1 / 16_000)[filters[band].argmax()]
    samples = np.sin(2 * np.pi * frequency * time_s).astype(np.float32)
    spectrum = log_mel(Audio(samples=samples, sample_rate=16_000))
    assert band == spectrum[10].argmax()
    assert spectrum[10, band] == pytest.approx(0.0, abs=1.5)


@pytest.mark.parametrize(
    ("samples", "frames"), [(0, 1), (1, 1), (1024, 1), (1025, 2), (1280, 2), (16_000, 60)]
)
def test_number_of_frames(samples: int, frames: int) -> None:
    """Every sample is in a frame, and there is always one."""
    audio = Audio(samples=np.zeros(samples, np.float32), sample_rate=16_000)
    assert (frames, MELS) == log_mel(audio).shape


def test_silence_and_broken_samples_lie_on_the_floor() -> None:
    """NaN and infinity do not spread."""
    samples = np.array([np.nan, np.inf, -np.inf, 0.0] * 400, np.float32)
    assert (log_mel(Audio(samples=samples, sample_rate=16_000)) == FLOOR_DB).all()
