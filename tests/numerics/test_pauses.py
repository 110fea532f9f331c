"""The floor of pauses by octave: planted hiss is found, and a voice against itself is silent."""

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tts_compress.audio import read_wav
from tts_compress.numerics import pauses as floors_of
from tts_compress.numerics.pauses import compare_floors, floor_noise, floor_rise, octave_edges

_RATE = 16_000
_BANDS = [(500, 1000), (1000, 2000), (2000, 4000), (4000, 8000), (500, 8000)]


@cache
def _speech(seed: int, floor_db: float = -75.0) -> tuple[npt.NDArray[np.float64], np.ndarray]:
    """Return syllables 23 dB below full scale with pauses, and where the pauses are."""
    random = np.random.default_rng(seed)
    sounds, pauses = [], []
    for place in range(8):
        time_s = np.arange(int((0.2 + 0.1 * random.random()) * _RATE)) / _RATE
        pitch = np.cumsum(110.0 + 60.0 * time_s) / _RATE
        voiced = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 60))
        silence = int((0.05, 0.25)[place % 2] * _RATE)
        sounds += [np.hanning(len(time_s)) * voiced, np.zeros(silence)]
        pauses += [np.zeros(len(time_s), bool), np.ones(silence, bool)]
    wave = np.concatenate(sounds)
    wave *= 10 ** (-23 / 20) / np.sqrt(np.mean(wave**2))
    wave += 10 ** (floor_db / 20) * random.standard_normal(len(wave))
    wave.setflags(write=False)  # tests share it
    return wave, np.concatenate(pauses)


def _hiss(length: int, band: tuple[float, float], level_db: float, seed: int) -> np.ndarray:
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(length))
    frequencies = np.fft.rfftfreq(length, 1 / _RATE)
    spectrum[(frequencies < band[0]) | (frequencies >= band[1])] = 0.0
    noise = np.fft.irfft(spectrum, length)
    return np.asarray(noise * 10 ** (level_db / 20) / np.sqrt(np.mean(noise**2)))


@pytest.mark.parametrize("band", _BANDS)
@pytest.mark.parametrize(("everywhere", "share"), [(True, 1.0), (False, 1.0), (False, 0.5)])
def test_hiss_in_any_octave_raises_the_floor(
    band: tuple[int, int], everywhere: bool, share: float
) -> None:
    """In the speech, too, in pauses alone, or in half of them."""
    rises = []
    for seed, level_db in enumerate((-50, -55, -60)):
        wave, pauses = _speech(seed)
        hiss = _hiss(len(wave), band, level_db, seed)
        where = everywhere | (pauses & (np.arange(len(wave)) < share * len(wave)))
        rise = floor_rise(wave, wave + np.where(where, hiss, 0.0), _RATE)
        assert rise is not None
        rises.append(rise)
    assert rises[0] > rises[1] > rises[2] > 9.0


def test_the_rise_is_in_decibels() -> None:
    """Noise of equal energy adds three, of ten times as much ten."""
    wave, _ = _speech(0, floor_db=-60.0)
    for level_db, expected in ((-60.0, 3.0), (-50.5, 10.0)):
        noise = 10 ** (level_db / 20) * np.random.default_rng(9).standard_normal(len(wave))
        rise = compare_floors(wave, np.append(wave + noise, 0.0), _RATE, aligned=False)
        assert rise is not None
        assert rise.rise_db == pytest.approx(expected, abs=1.5)
        share = floor_noise(wave, wave + noise, _RATE)
        assert share is not None
        assert 10.0 * np.log10(1.0 + share) == pytest.approx(expected, abs=2.0)


def test_nothing_rises_without_change() -> None:
    """Loudness and what is below hearing are no hiss; two seeds of a voice differ little."""
    wave, _ = _speech(0)
    quiet = _speech(0, floor_db=-95.0)[0]
    assert floor_rise(wave, wave, _RATE) == 0.0
    assert floor_rise(wave, wave * 0.89, _RATE) == pytest.approx(0.0, abs=1e-6)
    noisy = _speech(0, floor_db=-60.0)[0]
    assert floor_rise(noisy, noisy * 0.3, _RATE) == pytest.approx(0.0, abs=1e-6)
    assert floor_rise(quiet, _speech(0, floor_db=-88.0)[0], _RATE) == 0.0
    for seed in range(1, 11):
        other = floor_rise(wave, np.append(_speech(seed)[0], 0.0), _RATE)
        assert other is not None
        assert other < 2.0


@pytest.mark.parametrize("aligned", [True, False])
def test_a_noisy_voice_hides_hiss_below_its_own(aligned: bool) -> None:
    """Only what exceeds its floor counts, which is 27 dB below the speech."""
    wave, _ = _speech(0, floor_db=-50.0)
    rises = []
    for level_db in (-60, -35):
        hissing = wave + _hiss(len(wave), (500, 8000), level_db, 3)
        floors = compare_floors(wave, hissing, _RATE, aligned=aligned)
        assert floors is not None
        rises.append(floors.rise_db)
    assert rises[0] < 2.5
    assert rises[1] > 12.0


def test_zeros_between_sentences_hide_nothing() -> None:
    """A program puts them there, in both; hiss is in the voice's own pauses."""
    wave, _ = _speech(0)
    hissing = wave + _hiss(len(wave), (500, 8000), -55, 1)
    gap = np.zeros(2 * _RATE)
    for gaps in (gap, gap[:-1]):  # the latter has another timing
        rise = floor_rise(np.concatenate((wave, gap)), np.concatenate((hissing, gaps)), _RATE)
        assert rise is not None
        assert rise > 9.0
    filled = np.concatenate((hissing, _hiss(len(gap), (500, 8000), -55, 2)))
    assert (floor_rise(np.concatenate((wave, gap)), filled, _RATE) or 0.0) > 9.0


@pytest.mark.parametrize("rest", [[], [0.0]])
def test_hiss_is_found_where_the_reference_has_zeros_alone(rest: list[float]) -> None:
    """A gate cuts its sounds off; a floor nobody hears stands for that of its pauses."""
    count, random = 2 * _RATE, np.random.default_rng(0)
    gated = 0.1 * random.standard_normal(count) * (np.arange(count) // (_RATE // 4) % 2)
    assert floor_rise(gated, np.append(gated, rest), _RATE) == 0.0
    hissing = np.append(gated + _hiss(count, (500, 8000), -60, 1), rest)
    assert (floor_rise(gated, hissing, _RATE) or 0.0) > 9.0


@pytest.mark.parametrize("band", [*_BANDS, (2990, 3010)])
def test_brief_hiss_in_one_pause_of_many_is_found(band: tuple[int, int]) -> None:
    for seed in range(3):
        wave, pauses = _speech(seed)
        begin = int(np.flatnonzero(pauses)[0])
        hissing = wave.copy()
        hissing[begin : begin + _RATE // 20] += _hiss(_RATE // 20, band, -60, seed)
        floors = [
            compare_floors(wave, hissing, _RATE, aligned=True, brief=brief)
            for brief in (True, False)
        ]
        assert floors[0] is not None
        assert floors[1] is not None
        assert floors[0].rise_db > 9.0 > floors[1].rise_db
        assert begin / _RATE - 0.02 <= floors[0].at_s <= begin / _RATE + 0.05


def test_brief_hiss_is_no_chance() -> None:
    """Neither a delay of a few samples nor other noise of the same level is hiss."""
    for seed in range(10):
        wave, _ = _speech(seed, floor_db=-60.0)
        clean, _ = _speech(seed, floor_db=-200.0)
        noise = np.random.default_rng(100 + seed).standard_normal(len(wave))
        for other in (wave, 0.89 * wave, np.roll(wave, 5), clean + 1e-3 * noise):
            floors = compare_floors(wave, other, _RATE, aligned=True, silent_db=-58.0, brief=True)
            assert floors is not None
            assert floors.rise_db < 5.0


def test_without_pauses_there_is_no_floor() -> None:
    steady = np.sin(np.arange(_RATE) / 3.0)
    wave, _ = _speech(0)
    assert floor_rise(steady, steady, _RATE) is floor_noise(steady, steady, _RATE) is None
    for empty in (np.zeros(0), np.zeros(_RATE), np.full(_RATE, np.nan), wave[:100]):
        assert floor_noise(empty, wave[: len(empty)], _RATE) is None
        assert floor_rise(empty, wave, _RATE) is None
        assert floor_rise(wave, empty, _RATE) is None
    assert floor_rise(wave, wave, 1_000) is None


def test_the_place_is_in_a_pause() -> None:
    wave, pauses = _speech(0)
    floors = compare_floors(wave, wave + _hiss(len(wave), (500, 8000), -50, 0), _RATE, aligned=True)
    assert floors is not None
    assert pauses[round((floors.at_s + 0.01) * _RATE)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_zero(value: float) -> None:
    wave, pauses = _speech(0)
    places = np.flatnonzero(pauses)[::500]
    broken, zeroed = wave.copy(), wave.copy()
    broken[places], zeroed[places] = value, 0.0
    for compared in (floor_noise, floor_rise):
        assert compared(wave, broken, _RATE) == compared(wave, zeroed, _RATE)
        assert compared(broken, wave, _RATE) == compared(zeroed, wave, _RATE)


def test_each_spectrum_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, taken = floors_of._powers, list[int]()

    def noted(samples: npt.NDArray[np.float64], rate: int) -> npt.NDArray[np.float64]:
        taken.append(len(samples))
        return real(samples, rate)

    monkeypatch.setattr(floors_of, "_powers", noted)
    wave, _ = _speech(0)
    floor_rise(wave, 0.9 * wave, _RATE)
    assert len(taken) == 2
    floor_noise(wave, 0.9 * wave, _RATE)
    assert len(taken) == 4


def test_octaves_end_where_hearing_or_the_rate_does() -> None:
    assert octave_edges(16_000) == [500, 1000, 2000, 4000, 8000]
    assert octave_edges(22_050) == [500, 1000, 2000, 4000, 8000, 11_025]
    assert octave_edges(17_000) == [500, 1000, 2000, 4000, 8500]
    assert octave_edges(48_000)[-2:] == [8000, 16_000]


def test_recordings_are_silent_and_planted_hiss_is_found_in_them(assets: Path) -> None:
    """The recordings' own floor is 60 dB below full scale."""
    clips = [read_wav(path) for path in sorted((assets / "speech-ljspeech32" / "wavs").iterdir())]
    assert len(clips) == 32
    for place, clip in enumerate(clips[::4]):
        wave = clip.samples.astype(np.float64)
        assert floor_rise(wave, wave, clip.sample_rate) == 0.0
        hissing = wave + _hiss(len(wave), _BANDS[place % len(_BANDS)], -50, place)
        assert (floor_rise(wave, hissing, clip.sample_rate) or 0.0) > 9.0
