"""Log-mel spectra, their filters, and their warping, against brute force and other libraries."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.evaluation.metrics.planted import RATE, changed, make_speech
from tts_compress.audio import Audio
from tts_compress.numerics.spectra import (
    FLOOR_DB,
    MELS,
    align,
    compare_warped,
    log_mel,
    log_mel_distance,
    mel_filters,
    observe,
    same_timing,
    window_length,
)


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


def test_each_filter_rises_to_one_at_most_and_overlaps_the_next() -> None:
    filters = mel_filters(16_000, 1024, 40)
    assert filters.shape == (40, 513)
    assert filters.min() == 0.0
    assert 0.9 < filters.max() <= 1.0
    peaks = filters.argmax(axis=1)
    assert (np.diff(peaks) > 0).all()
    between = filters[:, peaks[0] : peaks[-1]].sum(axis=0)
    np.testing.assert_allclose(between, 1.0)  # what one loses the next one gains


@pytest.mark.parametrize("limits", [(0.0, 12_000.0), (80.0, 7_600.0)])
def test_filters_are_those_of_librosa(limits: tuple[float, float]) -> None:
    librosa = pytest.importorskip("librosa")
    low, high = limits
    expected = librosa.filters.mel(
        sr=24_000, n_fft=1024, n_mels=100, fmin=low, fmax=high, htk=True, norm=None
    )
    np.testing.assert_allclose(mel_filters(24_000, 1024, 100, limits), expected, atol=1e-6)


_COSTS = st.tuples(st.integers(1, 7), st.integers(1, 7)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(0, 20).map(float))
)


def _cheapest(costs: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """Return the least total over every monotonic path, by recursion."""

    @cache
    def total(row: int, column: int) -> float:
        if row < 0 or column < 0:
            return float("inf")
        before = min(total(row - 1, column), total(row, column - 1), total(row - 1, column - 1))
        return float(costs[row, column]) + (before if row or column else 0.0)

    return total(costs.shape[0] - 1, costs.shape[1] - 1)


@given(_COSTS)
def test_the_path_is_the_cheapest(costs: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    """Without a band, no path is cheaper, and the path is one."""
    path = align(list(costs), [0] * len(costs))
    assert path[0] == (0, 0)
    assert (costs.shape[0] - 1, costs.shape[1] - 1) == path[-1]
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(path)}
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert _cheapest(costs) == pytest.approx(sum(costs[cell] for cell in path))


def test_a_band_excludes_cells() -> None:
    """Cells outside count as impossible: same result as brute force with infinities there."""
    random = np.random.default_rng(0)
    for _ in range(30):
        costs = random.random((8, 8))
        starts = [max(0, row - 2) for row in range(8)]
        ends = [min(8, row + 3) for row in range(8)]
        banded = np.full((8, 8), np.inf)
        for row in range(8):
            banded[row, starts[row] : ends[row]] = costs[row, starts[row] : ends[row]]
        rows = [costs[row, starts[row] : ends[row]] for row in range(8)]
        path = align(rows, starts)
        assert _cheapest(banded) == pytest.approx(sum(costs[cell] for cell in path))


def test_the_path_is_the_cheapest_of_frames_that_differ_little() -> None:
    """Distances found in blocks, by products, lead along the path of exact ones."""
    random = np.random.default_rng(2)
    left = random.normal(-40.0, 10.0, 80) + np.linspace(0.0, 3.0, 150)[:, None]
    right = np.concatenate((left[6:], left[-1:].repeat(6, axis=0)))
    costs = np.sqrt(np.mean(np.square(left[:, None] - right), axis=2))
    best = [costs[cell] for cell in align(list(costs), [0] * len(costs))]
    assert compare_warped(left, right).distance_db == pytest.approx(np.mean(best), rel=1e-9)
    assert np.mean(best) < 0.5 * np.mean(np.diag(costs))


def test_a_stretched_copy_is_near_and_a_different_one_far() -> None:
    """Repeating frames costs nothing; other frames do."""
    random = np.random.default_rng(1)
    spectrum = random.normal(0, 10, (60, 80))
    stretched = np.repeat(spectrum, [2 if index % 12 == 0 else 1 for index in range(60)], axis=0)
    assert compare_warped(spectrum, stretched).distance_db == 0.0
    assert compare_warped(stretched, spectrum).distance_db == 0.0
    assert compare_warped(spectrum, random.normal(0, 10, (66, 80))).distance_db > 5.0


@pytest.mark.parametrize(("left", "right"), [(1, 1), (1, 50), (50, 1), (3, 200), (200, 3)])
def test_extreme_lengths_align(left: int, right: int) -> None:
    """A candidate that stops at once is still comparable; a constant difference is its distance."""
    distance = compare_warped(np.zeros((left, 80)), np.full((right, 80), 7.0)).distance_db
    assert pytest.approx(distance) == 7.0


def _delayed(audio: Audio, ms: int) -> Audio:
    """Return audio of the same length that begins later, or earlier."""
    rolled = np.roll(audio.samples, ms * audio.sample_rate // 1000)
    return changed(audio, rolled)


@pytest.mark.parametrize("ms", [-60, -20, 20, 60])
def test_recordings_of_equal_length_are_late(ms: int) -> None:
    """With other noise, too, and other loudness."""
    clean, other = make_speech(), make_speech(7)
    assert not same_timing(clean, _delayed(clean, ms))
    assert not same_timing(clean, _delayed(changed(other, 0.5 * other.samples), ms))


def test_noise_softness_silence_and_a_few_milliseconds_are_not_late() -> None:
    clean, other = make_speech(), make_speech(7)
    hiss = 0.03 * np.random.default_rng(0).standard_normal(len(clean.samples))
    cut = np.where(np.arange(len(hiss)) < len(hiss) // 2, clean.samples, 0.0)
    noisy, soft = clean.samples + hiss, 0.3 * clean.samples
    for samples in (other.samples, soft, noisy, hiss, 0.0 * hiss, cut):
        assert same_timing(clean, changed(clean, samples))
    assert same_timing(clean, _delayed(clean, 4))
    timed = replace(clean, durations=np.arange(3))
    assert same_timing(clean, timed)
    assert same_timing(timed, clean)
    for length in (0, 1, 1000):
        assert same_timing(changed(clean, hiss[:length]), changed(clean, cut[:length]))


def test_an_echo_is_not_late() -> None:
    """Its levels fit better a little later, but the samples are the reference's."""
    clean = make_speech()
    for gain in (0.3, 0.8):
        echo = gain * np.roll(clean.samples, RATE // 20)
        assert same_timing(clean, changed(clean, clean.samples + echo))


def test_other_noise_whose_levels_fit_a_little_better_elsewhere_is_not_late() -> None:
    clean, other = make_speech(), make_speech(7)
    echo = 0.3 * np.roll(other.samples, RATE // 20)
    assert same_timing(clean, changed(clean, other.samples + echo))


@pytest.mark.parametrize("rate", [RATE // 4, 4 * RATE])
def test_as_many_samples_at_another_rate_have_another_timing(rate: int) -> None:
    clean = make_speech()
    other = Audio(samples=clean.samples, sample_rate=rate)
    assert not same_timing(clean, other)
    with pytest.raises(ValueError, match="cannot compare audio at"):
        log_mel_distance(clean, other)
    with pytest.raises(ValueError, match="cannot compare audio at"):
        observe(clean, clean, other)
