"""Files on disk are used only if they are whole and belong here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tts_compress.audio import Audio, audio_sha256, read_wav, write_float_wav
from tts_compress.evaluation.store import (
    Analysis,
    Store,
    Synthesis,
    SynthesisJob,
    read_piece,
    write_piece,
)

_MODEL = "a" * 64
_JOB = SynthesisJob(model=_MODEL, text="hi", seed=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def spoken(store: Store, chirp: Audio) -> Synthesis:
    """Return a piece of synthesis that is in the store."""
    piece = Synthesis(model=_MODEL, text="hi", seed=3, audio=audio_sha256(chirp), durations=(1, 2))
    wav = store.wav_path(_JOB)
    write_float_wav(wav, chirp)
    write_piece(wav.with_suffix(".json"), piece)
    return piece


def test_a_finished_piece_is_found(store: Store, spoken: Synthesis) -> None:
    """It is found only under its own model, text and seed."""
    assert spoken == store.find_synthesis(_JOB)
    for other in ({"model": "b" * 64}, {"text": "ho"}, {"seed": 4}):
        assert store.find_synthesis(_JOB.model_copy(update=other)) is None


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".json", lambda row: row[:-20]),
        (".wav", lambda wav: wav[:-100]),
        (".wav", lambda wav: wav[:-1000] + bytes([wav[-1000] ^ 1]) + wav[-999:]),
        (".json", lambda row: row.replace(b"a" * 64, b"a" * 16 + b"b" * 48)),
        (".json", lambda _: b"\xff\xfe\x00"),
        (".wav", lambda _: None),
    ],
    ids=["row cut", "wav cut", "bit flipped", "other model", "not text", "wav gone"],
)
def test_a_damaged_piece_counts_as_missing(
    store: Store, spoken: Synthesis, suffix: str, change: Callable[[bytes], bytes | None]
) -> None:
    """It will be spoken again."""
    path = store.wav_path(spoken).with_suffix(suffix)
    changed = change(before := path.read_bytes())
    assert changed != before
    path.unlink() if changed is None else path.write_bytes(changed)
    assert store.find_synthesis(_JOB) is None


def test_hypotheses_belong_to_a_recognizer_and_an_audio(store: Store) -> None:
    """Another version of the recognizer has not transcribed it."""
    heard = Analysis(by="ears 1", audio="c" * 64, value="hello")
    write_piece(store.analysis_path("ears 1", "c" * 64), heard)

    def find(recognizer: str, audio: str) -> Analysis | None:
        path = store.analysis_path(recognizer, audio)
        return read_piece(path, Analysis, by=recognizer, audio=audio)

    assert heard == find("ears 1", "c" * 64)
    assert find("ears 2", "c" * 64) is None
    assert find("ears 1", "c" * 32 + "d" * 32) is None


@pytest.mark.parametrize(
    "samples", [[0.5, -1.5, 3.0], [np.nan, np.inf], []], ids=["loud", "broken", "empty"]
)
def test_exact_samples_survive_the_disk(tmp_path: Path, samples: list[float]) -> None:
    """Neither clipping nor NaN is repaired on the way."""
    audio = Audio(samples=np.array(samples, np.float32), sample_rate=22_050)
    write_float_wav(tmp_path / "deep" / "a.wav", audio)
    found = read_wav(tmp_path / "deep" / "a.wav")
    np.testing.assert_array_equal(audio.samples, found.samples)
    assert audio_sha256(audio) == audio_sha256(found)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.wav"]


def test_the_hash_of_audio_is_of_samples_and_rate(chirp: Audio) -> None:
    """Another rate is another audio."""
    assert audio_sha256(chirp) != audio_sha256(replace(chirp, sample_rate=8000))
    assert audio_sha256(chirp) != audio_sha256(replace(chirp, samples=chirp.samples * 0.5))
