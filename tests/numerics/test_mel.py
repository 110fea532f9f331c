"""Mel filters are those of other libraries."""

import numpy as np
import pytest

from tts_compress.numerics.spectra import mel_filters


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
