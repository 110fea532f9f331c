"""Synthesis does each piece once."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.subjects import make_subject
from tests.measures import TIMED
from tts_compress.audio import Audio, audio_sha256, read_wav, write_float_wav
from tts_compress.errors import EvaluationError, TextError
from tts_compress.evaluation import EvaluationOptions, Suite
from tts_compress.evaluation.pairs import Side, disturb, fill_store
from tts_compress.evaluation.process import KeptWorkers
from tts_compress.evaluation.run import evaluate
from tts_compress.evaluation.stages import read_timed, synthesize, time_pair
from tts_compress.evaluation.store import Analyzer, Store, SynthesisJob
from tts_compress.evaluation.subject import Subject, open_subject


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
    store: Store, model: Subject, fast_options: EvaluationOptions, log: Path, recorder: Any
) -> None:
    """A second run has nothing to do; only a lost or damaged piece is synthesized again."""
    _speak(store, model, _jobs(model), replace(fast_options, progress=recorder), stage="s")
    assert recorder.steps == [("s", done, 4) for done in range(5)]
    assert _spoken(log) == ["one cat", "one cat", "two dogs", "two dogs"]
    _speak(store, model, _jobs(model), fast_options, stage="s")
    assert len(_spoken(log)) == 4
    wav = store.wav_path(_jobs(model)[-1])
    before = read_wav(wav)
    wav.write_bytes(wav.read_bytes()[:200])
    _speak(store, model, _jobs(model), fast_options, stage="s")
    assert _spoken(log)[4:] == ["two dogs"]
    assert audio_sha256(before) == audio_sha256(read_wav(wav))


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


def test_the_disturbed_copy_is_softer_close_and_reproducible(chirp: Audio, tmp_path: Path) -> None:
    """One decibel, and noise of one 16-bit step."""
    copy = disturb(chirp)
    error = copy.samples - chirp.samples * 10 ** (-1 / 20)
    assert 0.0 < abs(error).max() <= 2**-15 + 1e-6
    write_float_wav(tmp_path / "chirp.wav", chirp)
    again = disturb(read_wav(tmp_path / "chirp.wav"))
    assert audio_sha256(again) == audio_sha256(copy)


_RECOGNIZER = Analyzer(
    kind="recognizer", spec="pocketsphinx", setting="en-us", description="tone reader 1"
)


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_shares_are_the_whole_evaluation(
    fakes: Callable[..., Any],
    small_suite: Suite,
    fast_options: EvaluationOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is spoken or recognized where all shares are in the store, and the values equal."""
    log, heard = tmp_path / "spoken", tmp_path / "heard"
    monkeypatch.setenv("FAKE_RECOGNIZER_LOG", str(heard))
    models = fakes("reference", log=str(log)), fakes("candidate", log=str(log), skip=2)
    subjects = [open_subject(model, tmp_path) for model in models]
    merged = tmp_path / "merged"
    monkeypatch.setattr(
        "tts_compress.evaluation.stages.time_models", lambda *_: (_timings(), _timings())
    )
    with KeptWorkers() as kept:
        options = replace(fast_options, kept=kept)
        for texts in ((0, 2), (1,)):
            for role, subject in zip(("reference", "candidate"), subjects, strict=True):
                store = Store(tmp_path / f"{role}{texts[0]}")
                own: Any = role
                side = Side(role=own, model=subject, suite=small_suite, texts=texts)
                fill_store(side, _RECOGNIZER, {}, store, options)
                shutil.copytree(store.root, merged, dirs_exist_ok=True)
        pair = (subjects[0], subjects[1])
        time_pair(Store(merged), pair, ["a"], options)
        spoken, recognized = log.read_text(), heard.read_text()
        assert len(spoken.splitlines()) == 3 * 2 * 3, "two seeds, and others of the reference"
        options = replace(options, work=merged, timed_before=True)
        found = evaluate(*models, suite=small_suite, options=options)
    assert (log.read_text(), heard.read_text()) == (spoken, recognized)
    # From the same store, so that this one speaks nothing, either; other tests compare stores.
    whole = evaluate(*models, suite=small_suite, options=replace(fast_options, work=merged))
    assert found.model_dump(exclude=TIMED) == whole.model_dump(exclude=TIMED)
    assert found.latency.reference.p50_ms == pytest.approx(300.0), "the times are the earlier ones"


def test_times_that_were_not_taken_are_an_error(
    fakes: Callable[..., Any], fast_options: EvaluationOptions, tmp_path: Path
) -> None:
    subject = open_subject(fakes("same"), tmp_path)
    with pytest.raises(EvaluationError, match="was not timed against"):
        read_timed(Store(tmp_path), (subject, subject), fast_options)


class _Process:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_kept_processes_are_used_again_until_they_fail() -> None:
    made: list[Any] = []

    def start() -> Any:
        made.append(_Process())
        return made[-1]

    with KeptWorkers(most=1) as kept:
        with kept.borrow("a", start) as first, kept.borrow("a", start) as second:
            assert first is not second, "one user at a time"
        assert made[0].closed != made[1].closed, "one stays"
        with kept.borrow("a", start) as again:
            assert again in made[:2]
        with pytest.raises(ZeroDivisionError), kept.borrow("a", start) as broken:
            raise ZeroDivisionError
        assert vars(broken)["closed"]
        with kept.borrow("a", start) as fresh:
            assert fresh is made[2]
    assert all(one.closed for one in made)


def _timings() -> Any:
    from tts_compress.evaluation.stages import Timings

    return Timings(spent=((0.3,) * 2,) * 2, audio=((1.0,) * 2,) * 2)
