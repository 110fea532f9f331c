"""Synthesis and recognition do each piece once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.evaluation.subjects import make_subject
from tts_compress.audio import Audio, read_wav
from tts_compress.errors import EvaluationError, TextError
from tts_compress.evaluation.pairs import disturb
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.stages import open_listener, recognize, synthesize
from tts_compress.evaluation.store import Store, SynthesisJob, audio_sha256, write_float_wav
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


def _spoken(log: Path) -> list[str]:
    return log.read_text().splitlines()


def test_only_what_is_missing_is_spoken(
    store: Store, model: Subject, fast_options: EvaluationOptions, log: Path
) -> None:
    """A second run has nothing to do; only a lost or damaged piece is synthesized again."""
    synthesize(store, model, _jobs(model), fast_options, stage="s")
    assert _spoken(log) == ["one cat", "one cat", "two dogs", "two dogs"]
    synthesize(store, model, _jobs(model), fast_options, stage="s")
    assert len(_spoken(log)) == 4
    wav = store.wav_path(_jobs(model)[-1])
    before = read_wav(wav)
    wav.write_bytes(wav.read_bytes()[:200])
    synthesize(store, model, _jobs(model), fast_options, stage="s")
    assert _spoken(log)[4:] == ["two dogs"]
    assert audio_sha256(before) == audio_sha256(read_wav(wav))


def test_another_model_shares_nothing(
    store: Store, model: Subject, fast_options: EvaluationOptions, log: Path
) -> None:
    """Results of a model that was replaced under its name are not taken over."""
    synthesize(store, model, _jobs(model), fast_options, stage="s")
    other = replace(model, fingerprint="e" * 64)
    synthesize(store, other, _jobs(other), fast_options, stage="s")
    assert len(_spoken(log)) == 8


def test_what_was_spoken_before_a_failure_is_kept(
    store: Store, fake_spec: Callable[..., str], fast_options: EvaluationOptions
) -> None:
    """The text that fails is the only one that is missing."""
    spec = fake_spec("bad", fault="text", on="two dogs")
    bad = make_subject(spec, shown="bad", fingerprint="b" * 64)
    with pytest.raises(TextError, match="model 'bad': cannot be spoken"):
        synthesize(store, bad, _jobs(bad), fast_options, stage="s")
    found = [store.find_synthesis(job) for job in _jobs(bad)]
    assert [piece is not None for piece in found] == [True, True, False, False]


def test_progress_reaches_the_end(
    store: Store, model: Subject, fast_options: EvaluationOptions, recorder: Any
) -> None:
    """Done counts up to the total."""
    synthesize(store, model, _jobs(model), replace(fast_options, progress=recorder), stage="s")
    assert [("s", done, 4) for done in range(5)] == recorder.steps


@pytest.fixture
def audios(tmp_path: Path, chirp: Audio) -> dict[str, Path]:
    found = {}
    for index in range(5):
        audio = replace(chirp, samples=chirp.samples[: 4000 + 400 * index])
        write_float_wav(tmp_path / f"{index}.wav", audio)
        found[audio_sha256(audio)] = tmp_path / f"{index}.wav"
    return found


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_audio_is_heard_once(
    store: Store,
    audios: dict[str, Path],
    fast_options: EvaluationOptions,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
) -> None:
    """With any number of processes; the audio of a truncated piece is recognized again."""
    monkeypatch.setenv("FAKE_RECOGNIZER_LOG", str(log))
    options = replace(fast_options, jobs=jobs)
    ears = open_listener("pocketsphinx", "en-us", options)
    assert (ears.description, ears.device) == ("tone reader 1", "cpu")
    assert {*recognize(store, ears, audios, options)} == {*audios}
    assert sorted(f"{4000 + 400 * index}" for index in range(5)) == sorted(_spoken(log))
    recognize(store, ears, audios, options)
    assert len(_spoken(log)) == 5
    piece = next((store.root / "recognition").rglob("*.json"))
    piece.write_text(piece.read_text()[:-9])
    recognize(store, ears, audios, options)
    assert len(_spoken(log)) == 6


def test_one_process_is_enough_for_a_gpu(
    store: Store,
    audios: dict[str, Path],
    fast_options: EvaluationOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several would hold the same weights in the memory of one device."""
    started = []

    class Counted(Worker):
        def __init__(self, *given: Any, **more: Any) -> None:
            started.append(given)
            super().__init__(*given, **more)

    ears = open_listener("pocketsphinx", "en-us", fast_options)
    monkeypatch.setattr("tts_compress.evaluation.stages.Worker", Counted)
    recognize(store, replace(ears, device="cuda"), audios, replace(fast_options, jobs=3))
    assert len(started) == 1
    recognize(store, ears, audios, replace(fast_options, jobs=3))
    assert len(started) == 1, "nothing is left to do"
    recognize(store, replace(ears, description="2"), audios, replace(fast_options, jobs=3))
    assert len(started) == 4


def test_a_lost_audio_is_one_error(
    store: Store, audios: dict[str, Path], fast_options: EvaluationOptions
) -> None:
    """Transcripts made before the error are kept."""
    list(audios.values())[2].unlink()
    ears = open_listener("pocketsphinx", "en-us", fast_options)
    with pytest.raises(EvaluationError, match=r"recognizer 'pocketsphinx': cannot read audio"):
        recognize(store, ears, audios, replace(fast_options, jobs=2))


def test_the_disturbed_copy_is_softer_close_and_reproducible(chirp: Audio, tmp_path: Path) -> None:
    """One decibel, and noise of one 16-bit step."""
    copy = disturb(chirp)
    error = copy.samples - chirp.samples * 10 ** (-1 / 20)
    assert 0.0 < abs(error).max() <= 2**-15 + 1e-6
    write_float_wav(tmp_path / "chirp.wav", chirp)
    again = disturb(read_wav(tmp_path / "chirp.wav"))
    assert audio_sha256(again) == audio_sha256(copy)
