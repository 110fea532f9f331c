"""Predicted opinion scores are those of Microsoft's own code."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tts_compress.audio import Audio, finite_samples, read_wav
from tts_compress.evaluation.metrics import opinion
from tts_compress.evaluation.metrics.opinion import METRICS, OpinionNetworks, open_networks
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.numerics.spectra import slaney_filters

_NAMES = ("dnsmos_signal", "dnsmos_background", "dnsmos_overall", "dnsmos_p808", "plcmos")


@pytest.fixture(scope="module")
def networks(listen: Path) -> OpinionNetworks:
    """Open the networks of the wheel."""
    if opinion._MEASURE.settings(EvaluationOptions()) is None:
        pytest.skip(f"not in {listen}: pip install --target {listen} speechmos==0.0.1.1")
    return open_networks()


def _tone() -> npt.NDArray[np.float32]:
    """Return four seconds of a gated, gliding tone in noise."""
    time_s = np.arange(64_000) / 16_000
    glide = np.sin(2 * np.pi * 180 * time_s * (1 + 0.05 * np.sin(2 * np.pi * 3 * time_s)))
    noise = np.random.default_rng(7).standard_normal(len(time_s))
    gate = np.sin(2 * np.pi * 1.5 * time_s) > 0
    return np.asarray(0.2 * glide * gate + 0.01 * noise, np.float32)


# By `dnsmos.run` and `PLCMOS.get_mos` of speechmos 0.0.1.1, with librosa 0.11.0 and numpy's legacy
# seed 0.
_TONE = (1.731671, 1.446778, 1.299814, 2.330726, 3.097240)
_LONG = (3.573851, 3.172640, 2.814358, 3.668577, 4.170589)


def test_scores_of_a_tone_are_upstreams(networks: OpinionNetworks) -> None:
    found = networks.scores(_tone())
    assert [found[name] for name in _NAMES] == pytest.approx(_TONE, abs=2e-4)


def test_scores_of_a_recording_are_upstreams(networks: OpinionNetworks, assets: Path) -> None:
    """Longer than 9.01 s, it is taken in steps of a second; the tone is repeated up to that."""
    clip = read_wav(assets / "speech-ljspeech32" / "wavs" / "LJ001-0002.wav")
    samples = np.tile(finite_samples(clip, 16_000), 7)
    found = networks.scores(samples)
    assert [found[name] for name in _NAMES] == pytest.approx(_LONG, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [[], [np.nan, 9.0] * 4000])
def test_any_audio_has_scores(samples: list[float], networks: OpinionNetworks) -> None:
    audio = Audio(samples=np.array(samples, np.float32), sample_rate=8_000)
    assert np.isfinite([*opinion._score(networks, audio).values()]).all()


@pytest.mark.parametrize("samples", [[], [np.nan, 9.0] * 8000])
def test_networks_hear_a_second_or_more_of_numbers(samples: list[float]) -> None:
    heard: Any = SimpleNamespace(scores=lambda samples: samples)
    audio = Audio(samples=np.array(samples, np.float32), sample_rate=16_000)
    found: Any = opinion._score(heard, audio)
    assert len(found) == 16_000
    assert np.abs(found).max() <= 1.0


def test_without_the_networks_there_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(opinion, "version", missing)
    assert opinion._MEASURE.settings(EvaluationOptions()) is None
    run: Any = SimpleNamespace(measurements=lambda _: None, pairs=[])
    assert [metric.compute(run) for metric in METRICS[1:]] == [None] * 5


def test_each_score_is_compared_by_its_name() -> None:
    before = {name: 3.0 + place for place, name in enumerate(_NAMES)}
    after = {name: 0.5 + place for place, name in enumerate(_NAMES)}
    found = 12 * [{"reference": before, "candidate": after}]
    run: Any = SimpleNamespace(measurements=lambda _: found, blocks=[*range(12)])
    for metric in METRICS[1:]:
        scores = metric.compute(run)
        assert (scores.reference, scores.candidate) == (before[metric.name], after[metric.name])
        assert [row.trend for row in metric.table_rows(scores, None)] == ["worse"]


def test_filters_on_slaneys_scale_have_area_one() -> None:
    """Wide ones, that many bins sample; below 1 kHz they are evenly spaced."""
    filters = slaney_filters(16_000, 4096, 40)
    areas = filters.sum(axis=1) * 16_000 / 4096
    assert areas == pytest.approx(1.0, abs=0.03)
    peaks = filters.argmax(axis=1) * 16_000 / 4096
    low = peaks[peaks < 950]
    assert np.diff(low) == pytest.approx(float(np.diff(low).mean()), abs=8.0)
