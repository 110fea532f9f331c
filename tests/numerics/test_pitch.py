"""The tracker finds a known fundamental frequency, and voicing."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tts_compress.audio import Audio, read_wav
from tts_compress.numerics.pitch import LEAST_FRAMES, pitch_changes, track_pitch
from tts_compress.numerics.spectra import log_mel, window_length


def _voice(hertz: npt.NDArray[np.float64], rate: int, tilt: float = 1.0) -> Audio:
    """Return a harmonic tone of a frequency over time, without what is above half the rate."""
    phase = 2.0 * np.pi * np.cumsum(hertz) / rate
    partials = [
        np.sin(k * phase + k) * (k * hertz < rate / 2) / k**tilt for k in range(1, int(4000 / 60))
    ]
    samples = 0.1 * np.sum(partials, axis=0)
    return Audio(samples=samples.astype(np.float32), sample_rate=rate)


def _at_frames(curve: npt.NDArray[np.float64], audio: Audio) -> npt.NDArray[np.float64]:
    """Return a curve over samples at the middles of the frames."""
    window = window_length(audio.sample_rate)
    places = np.arange(len(track_pitch(audio))) * (window // 4) + window // 2
    return curve[np.minimum(places, len(curve) - 1)]


def _glide(rate: int, ends: tuple[float, float]) -> npt.NDArray[np.float64]:
    return np.geomspace(*ends, rate)


@pytest.mark.parametrize("rate", [16_000, 22_050, 24_000, 44_100])
@pytest.mark.parametrize("ends", [(70.0, 140.0), (300.0, 110.0), (200.0, 450.0)])
def test_a_glide_of_known_frequency_is_followed(rate: int, ends: tuple[float, float]) -> None:
    """Within a third of a semitone in each frame, and without a bias."""
    curve = _glide(rate, ends)
    audio = _voice(curve, rate)
    found = track_pitch(audio)
    inside = slice(3, -4)
    assert len(found) == len(log_mel(audio))
    assert (found[inside] > 0.0).all()
    cents = 1200.0 * np.log2(found[inside] / _at_frames(curve, audio)[inside])
    assert np.abs(cents).max() < 33.0
    assert abs(cents.mean()) < 8.0


@pytest.mark.parametrize("ends", [(90.0, 180.0), (330.0, 120.0)])
def test_neither_hiss_nor_a_weak_fundamental_doubles_it(ends: tuple[float, float]) -> None:
    """At a signal-to-noise ratio of 10 dB; and with strong overtones, as in a nasal vowel."""
    random = np.random.default_rng(0)
    curve = _glide(22_050, ends)
    for tilt in (0.0, 1.0):
        clean = _voice(curve, 22_050, tilt)
        power = float(np.mean(np.square(clean.samples)))
        noise = random.standard_normal(len(curve)) * np.sqrt(power / 10.0)
        noisy = Audio(samples=(clean.samples + noise).astype(np.float32), sample_rate=22_050)
        found, known = track_pitch(noisy)[3:-4], _at_frames(curve, noisy)[3:-4]
        assert np.mean(found > 0.0) > 0.95
        voiced = found > 0.0
        cents = 1200.0 * np.log2(found[voiced] / known[voiced])
        assert np.mean(np.abs(cents) < 50.0) > 0.98


def test_noise_and_silence_have_no_voice() -> None:
    random = np.random.default_rng(1)
    for samples in (np.zeros(22_050), 0.1 * random.standard_normal(22_050)):
        audio = Audio(samples=samples.astype(np.float32), sample_rate=22_050)
        assert np.mean(track_pitch(audio) > 0.0) < 0.05


def test_voicing_changes_where_the_voice_does() -> None:
    """Half a second of voice, of noise, of voice: each change within 30 ms."""
    rate = 22_050
    voice = _voice(_glide(rate, (150.0, 150.0)), rate).samples[: rate // 2]
    noise = 0.05 * np.random.default_rng(2).standard_normal(rate // 2)
    samples = np.concatenate((voice, noise, voice)).astype(np.float32)
    found = track_pitch(Audio(samples=samples, sample_rate=rate)) > 0.0
    changes = (np.flatnonzero(np.diff(found[2:-3].astype(int))) + 3) * 256 + 512
    assert len(changes) == 2
    assert changes / rate == pytest.approx([0.5, 1.0], abs=0.03)


def test_a_change_of_pitch_is_that_of_moments_with_a_voice_in_both() -> None:
    """One voice pauses after half a second, the other after three quarters, to its end."""
    pauses = {150.0: slice(8_000, 13_000), 150.0 * 2 ** (1 / 12): slice(12_000, 16_000)}
    before, after = (_voice(np.full(16_000, hertz), 16_000) for hertz in pauses)
    for audio, pause in zip((before, after), pauses.values(), strict=True):
        audio.samples[pause] = 0.0
    moments = np.linspace(0.1, 0.9, 80)
    cents, seconds = pitch_changes(before, after, np.stack([moments, moments], 1))
    assert 30 < len(cents) < 50
    assert seconds.max() < 0.55
    np.testing.assert_allclose(cents, 100.0, atol=20.0)
    for count in (LEAST_FRAMES - 1, LEAST_FRAMES):
        few = pitch_changes(before, after, np.full((count, 2), 0.3))
        assert [len(values) for values in few] == 2 * [0 if count < LEAST_FRAMES else count]


@pytest.mark.parametrize("length", [0, 1, 300, 1024, 5000])
@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf])
def test_any_audio_has_a_track(length: int, value: float) -> None:
    audio = Audio(samples=np.full(length, value, np.float32), sample_rate=16_000)
    assert np.isfinite(track_pitch(audio)).all()
    assert len(track_pitch(audio)) == len(log_mel(audio))


# Of LJ001-0002 by Praat's autocorrelation (parselmouth 0.4.7, 60 to 500 Hz), in Hz, at the middle
# of every fourth frame; 0 without a voice.
_PRAAT = np.array([
    280, 304, 311, 280, 322, 306, 308, 317, 298, 0, 343, 311, 0, 0, 0, 199, 187, 189, 194, 196, 0,
    209, 184, 0, 196, 192, 190, 183, 175, 162, 151, 158, 179, 184, 164, 136, 118, 111, 0, 0, 0,
], float)  # fmt: skip


def test_a_recording_has_the_melody_that_praat_finds(assets: Path) -> None:
    clip = read_wav(assets / "speech-ljspeech32" / "wavs" / "LJ001-0002.wav")
    found, known = track_pitch(clip)[::4], _PRAAT
    assert len(found) == len(known)
    both = (found > 0.0) & (known > 0.0)
    assert np.mean((found > 0.0) == (known > 0.0)) > 0.85
    assert np.abs(1200.0 * np.log2(found[both] / known[both])).max() < 50.0
