"""The melody is compared where both have a voice, along the alignment of the spectra."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tts_compress.evaluation.metrics.f0 import METRICS, correlation, rmse_cents, voicing_error
from tts_compress.numerics.spectra import Comparison

_SEMITONE = 2.0 ** (1.0 / 12.0)


def _track(seed: int = 0, frames: int = 200) -> npt.NDArray[np.float64]:
    """Return a melody around 120 Hz, with a voice in four of five frames."""
    random = np.random.default_rng(seed)
    melody = 120.0 * np.exp(0.1 * np.sin(np.arange(frames) / 9.0) + 0.02 * random.random(frames))
    return np.where(np.arange(frames) % 50 < 40, melody, 0.0)


def test_a_transposed_melody_is_off_by_its_interval() -> None:
    """A semitone is 100 cents, and correlates fully."""
    track = _track()
    assert rmse_cents(track, _SEMITONE * track) == pytest.approx(100.0)
    assert correlation(track, _SEMITONE * track) == pytest.approx(1.0)
    assert correlation(track, np.where(track > 0.0, 14_400.0 / track.clip(1.0), 0.0)) < -0.99
    assert voicing_error(track, _SEMITONE * track) == 0.0


def test_frames_with_a_voice_in_one_alone_are_voicing_errors() -> None:
    """They count in no melody: 20 of 200 frames, half of them gained."""
    track = _track()
    other = track.copy()
    other[:10] = 0.0
    other[40:50] = 400.0
    assert voicing_error(track, other) == pytest.approx(0.1)
    assert rmse_cents(track, other) == 0.0


def test_where_there_is_no_melody_there_is_no_figure() -> None:
    silence, short = np.zeros(50), np.where(np.arange(50) < 9, 100.0, 0.0)
    for track in (silence, short):
        assert np.isnan(rmse_cents(track, track))
        assert np.isnan(correlation(track, track))
    assert np.isnan(correlation(np.full(50, 100.0), _track(frames=50)))


def _run(reference: Any, candidate: Any, other: Any, frames: npt.NDArray[np.int32]) -> Any:
    """Return a run of twelve equal pairs; the other seed is compared frame by frame."""
    same = np.repeat(np.arange(len(reference), dtype=np.int32)[:, None], 2, axis=1)
    observed: dict[str, list[Any]] = {
        "f0_mean": [{"reference": reference, "candidate": candidate, "other_seed": other}],
        "floors": [Comparison(distance_db=0.0, frames=same)],
        "signal": [SimpleNamespace(spectra=Comparison(distance_db=0.0, frames=frames))],
    }
    return SimpleNamespace(blocks=[*range(12)], observations=lambda name: 12 * observed[name])


def test_the_candidate_is_compared_along_the_alignment() -> None:
    """A candidate of half the speed has the same melody; the other seed is off by two semitones."""
    track = _track()
    slow = np.repeat(track, 2)
    frames = np.stack((np.arange(400) // 2, np.arange(400)), axis=1).astype(np.int32)
    run = _run(track, slow, _SEMITONE**2 * track, frames)
    rmse, corr, voicing, mean = (metric.compute(run) for metric in METRICS)
    assert (rmse.reference, rmse.candidate) == pytest.approx((200.0, 0.0))
    assert (corr.reference, corr.candidate) == pytest.approx((1.0, 1.0))
    assert (voicing.reference, voicing.candidate) == (0.0, 0.0)
    voiced = track[track > 0.0]
    assert mean.reference == mean.candidate == pytest.approx(np.exp(np.log(voiced).mean()))
    assert METRICS[0].table_rows(rmse, None)[0].change == "floor, other seeds: 200.0 cents"


def test_a_candidate_without_a_voice_has_no_melody_but_errors() -> None:
    track = _track()
    frames = np.repeat(np.arange(200, dtype=np.int32)[:, None], 2, axis=1)
    run = _run(track, np.zeros(200), track, frames)
    rmse, corr, voicing, mean = (metric.compute(run) for metric in METRICS)
    assert rmse is corr is mean is None
    assert voicing.candidate == pytest.approx(0.8)
    (row,) = METRICS[2].table_rows(voicing, None)
    assert (row.candidate, row.trend) == ("80.0 %", "unknown")
