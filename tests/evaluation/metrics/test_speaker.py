"""Embeddings of speakers are those of Resemblyzer, and tell voices apart."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from tests.evaluation.metrics.tones import gliding_tone
from tts_compress.audio import Audio, finite_samples, read_wav, write_wav
from tts_compress.evaluation.metrics import speaker
from tts_compress.evaluation.metrics.speaker import METRICS, open_encoder, split_parts
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.models.base import Prompt, Speaking

Samples: TypeAlias = npt.NDArray[np.float32]
Encode: TypeAlias = Callable[[Samples], Samples]

# By `VoiceEncoder.embed_utterance` of Resemblyzer 0.1.4 behind its `normalize_volume`, with
# librosa 0.11.0 and torch 2.13: the first values of LJ001-0002; cosines between a tone, half
# a second of it, a soft copy of it, and LJ001-0001 to -0004.
_VALUES = {1: 0.001922, 7: 0.125998, 8: 0.006862, 10: 0.098260, 11: 0.166733, 12: 0.056663}
_COSINES = np.array([
    [0.392561, 0.474721, 0.458510, 0.511028, 0.484202, 0.482032],
    [1.000000, 0.511968, 0.564997, 0.545317, 0.589590, 0.584207],
    [0.511968, 1.000000, 0.757120, 0.910318, 0.765145, 0.728553],
    [0.564997, 0.757120, 1.000000, 0.828923, 0.966766, 0.941109],
    [0.545317, 0.910318, 0.828923, 1.000000, 0.835317, 0.792871],
    [0.589590, 0.765145, 0.966766, 0.835317, 1.000000, 0.943468],
    [0.584207, 0.728553, 0.941109, 0.792871, 0.943468, 1.000000],
])  # fmt: skip


@pytest.fixture(scope="module")
def encode(listen: Path) -> Encode:
    """Open the network of the wheel."""
    pytest.importorskip("torch")
    if speaker._MEASURE.settings(EvaluationOptions()) is None:
        pytest.skip(f"not in {listen}: pip install --target {listen} --no-deps resemblyzer==0.1.4")
    return open_encoder()


def _clip(assets: Path, name: str) -> Samples:
    return finite_samples(read_wav(assets / "speech-ljspeech32" / "wavs" / f"{name}.wav"), 16_000)


def test_embeddings_are_upstreams(encode: Encode, assets: Path) -> None:
    first, clip, *others = (_clip(assets, f"LJ001-000{number}") for number in (1, 2, 3, 4))
    given = (gliding_tone(), clip[:8000], 0.01 * clip, first, clip, *others)
    found = np.array([encode(samples) for samples in given])
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert found @ found[1:].T == pytest.approx(_COSINES, abs=2e-4)
    assert found[4, :13] == pytest.approx(
        [_VALUES.get(place, 0.0) for place in range(13)], abs=2e-4
    )


@pytest.mark.parametrize(
    ("seconds", "parts"), [(0.0, 1), (0.5, 1), (1.6, 1), (1.9, 1), (2.0, 2), (2.7, 2), (2.75, 3)]
)
def test_parts_overlap_and_a_short_last_one_is_left_out(seconds: float, parts: int) -> None:
    """They begin every 0.77 s; the last has at least 1.2 s of speech, unless it is the only one."""
    assert split_parts(np.zeros(int(16_000 * seconds), np.float32)).shape == (parts, 160, 40)


@pytest.mark.parametrize("samples", [[], [0.0] * 9000, [np.nan] * 9000, [9.0] * 9000])
def test_any_audio_has_an_embedding(samples: list[float], encode: Encode) -> None:
    assert encode is not None
    audio = Audio(samples=np.array(samples, np.float32), sample_rate=8_000)
    found = speaker._MEASURE.open({})(audio)
    assert np.isfinite(found).all()
    assert len(found) == 256


def test_without_the_wheel_there_is_no_similarity(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(speaker, "version", missing)
    assert speaker._MEASURE.settings(EvaluationOptions()) is None
    run: Any = SimpleNamespace(measurements=lambda _: None, models=(), subjects=())
    assert [metric.compute(run) for metric in METRICS] == [None, None]


def _run(prompt: Prompt | None = None, **roles: list[float]) -> Any:
    model = SimpleNamespace(prompt=None, model=SimpleNamespace(speaking=Speaking(prompt=prompt)))
    return SimpleNamespace(
        measurements=lambda _: 12 * [roles], blocks=[*range(12)], models=(model,), subjects=(model,)
    )


def test_the_candidate_is_compared_with_the_floor_of_other_seeds() -> None:
    """Cosines, whatever the lengths: 0.6 to the reference, 0.8 between two of its seeds."""
    run = _run(reference=[1.0, 0.0], candidate=[6.0, 8.0], other_seed=[0.4, 0.3])
    found = METRICS[0].compute(run)
    assert (found.reference, found.candidate) == pytest.approx((0.8, 0.6))
    (row,) = METRICS[0].table_rows(found, None)
    assert (row.candidate, row.change, row.trend) == ("0.600", "floor, other seeds: 0.800", "worse")
    assert METRICS[1].compute(run) is None, "no recording"


def test_silence_is_like_nobody() -> None:
    run = _run(reference=[1.0, 0.0], candidate=[0.0, 0.0], other_seed=[1.0, 0.0])
    assert METRICS[0].compute(run).candidate == 0.0


def test_both_models_are_compared_with_the_recording(
    encode: Encode, assets: Path, tmp_path: Path
) -> None:
    """A stereo one, at another rate; its speaker is nearer than a tone."""
    recording, tone = _clip(assets, "LJ001-0002"), encode(gliding_tone()).tolist()
    write_wav(tmp_path / "prompt.wav", Audio(samples=recording, sample_rate=16_000))
    speech = encode(_clip(assets, "LJ001-0003")).tolist()
    run = _run(
        Prompt(audio=tmp_path / "prompt.wav"), reference=speech, candidate=tone, other_seed=speech
    )
    found = METRICS[1].compute(run)
    assert found.reference > 0.75
    assert found.candidate < 0.65
    (row,) = METRICS[1].table_rows(found, None)
    assert row.trend == "worse"
