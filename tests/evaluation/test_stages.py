"""Synthesis does each piece once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.evaluation.subjects import make_subject
from tts_compress.audio import Audio, audio_sha256, read_wav, write_float_wav
from tts_compress.errors import TextError
from tts_compress.evaluation.pairs import disturb
from tts_compress.evaluation.stages import synthesize
from tts_compress.evaluation.store import Store, SynthesisJob
from tts_compress.evaluation.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.evaluation import EvaluationOptions


def _jobs(model: Subject) -> list[SynthesisJob]:
    return [
        SynthesisJob(model=model.fingerprint, text=text, seed=seed)
        for text in ("one cat", "two dogs")
        for seed in (0, 5)
    ]


@pytest.fixture
def model(fake_spec: Callable[..., str], log: Path) -> Subject:
    spec = fake_spec("model", log=str(log))
    return make_subject(spec, shown="model", fingerprint="f" * 64)


def _speak(*given: Any, stage: str) -> None:
    assert len(list(synthesize(*given, stage=stage))) == 4


def _spoken(log: Path) -> list[str]:
    return log.read_text().splitlines()


def test_only_what_is_missing_is_spoken(
    store: Store, model: Subject, fast_options: EvaluationOptions, log: Path
) -> None:
    """A second run has nothing to do; only a lost or damaged piece is synthesized again."""
    _speak(store, model, _jobs(model), fast_options, stage="s")
    assert _spoken(log) == ["one cat", "one cat", "two dogs", "two dogs"]
    _speak(store, model, _jobs(model), fast_options, stage="s")
    assert len(_spoken(log)) == 4
    wav = store.wav_path(_jobs(model)[-1])
    before = read_wav(wav)
    wav.write_bytes(wav.read_bytes()[:200])
    _speak(store, model, _jobs(model), fast_options, stage="s")
    assert _spoken(log)[4:] == ["two dogs"]
    assert audio_sha256(before) == audio_sha256(read_wav(wav))


def test_another_model_shares_nothing(
    store: Store, model: Subject, fast_options: EvaluationOptions, log: Path
) -> None:
    """Results of a model that was replaced under its name are not taken over."""
    _speak(store, model, _jobs(model), fast_options, stage="s")
    other = replace(model, fingerprint="e" * 64)
    _speak(store, other, _jobs(other), fast_options, stage="s")
    assert len(_spoken(log)) == 8


def test_what_was_spoken_before_a_failure_is_kept(
    store: Store, fake_spec: Callable[..., str], fast_options: EvaluationOptions
) -> None:
    """The text that fails is the only one that is missing."""
    spec = fake_spec("bad", fault="text", on="two dogs")
    bad = make_subject(spec, shown="bad", fingerprint="b" * 64)
    with pytest.raises(TextError, match="model 'bad': cannot be spoken"):
        _speak(store, bad, _jobs(bad), fast_options, stage="s")
    found = [store.find_synthesis(job) for job in _jobs(bad)]
    assert [piece is not None for piece in found] == [True, True, False, False]


def test_progress_reaches_the_end(
    store: Store, model: Subject, fast_options: EvaluationOptions, recorder: Any
) -> None:
    """Done counts up to the total."""
    _speak(store, model, _jobs(model), replace(fast_options, progress=recorder), stage="s")
    assert [("s", done, 4) for done in range(5)] == recorder.steps


def test_the_disturbed_copy_is_softer_close_and_reproducible(chirp: Audio, tmp_path: Path) -> None:
    """One decibel, and noise of one 16-bit step."""
    copy = disturb(chirp)
    error = copy.samples - chirp.samples * 10 ** (-1 / 20)
    assert 0.0 < abs(error).max() <= 2**-15 + 1e-6
    write_float_wav(tmp_path / "chirp.wav", chirp)
    again = disturb(read_wav(tmp_path / "chirp.wav"))
    assert audio_sha256(again) == audio_sha256(copy)
