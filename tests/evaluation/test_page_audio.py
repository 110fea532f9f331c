"""Audio for inside the page."""

import io
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from tts_compress.audio import Audio, resample
from tts_compress.errors import TTSCompressWarning
from tts_compress.evaluation.metric import Pair
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.page_audio import (
    LONGEST_S,
    choose_utterances,
    encode_opus,
    encode_pairs,
)
from tts_compress.numerics.spectra import log_mel_distance


def _decode(stream: bytes, rate: int) -> Audio:
    samples, found = soundfile.read(io.BytesIO(stream), dtype="float32")
    return Audio(samples=resample(samples, found, rate), sample_rate=rate)


@pytest.mark.parametrize("rate", [22_050, 48_000])
def test_speech_comes_back_as_long_as_loud_and_nearly_as_it_was(
    recordings: list[Audio], rate: int
) -> None:
    for recording in recordings:
        samples = resample(recording.samples, recording.sample_rate, rate)
        audio = Audio(samples=samples, sample_rate=rate)
        back = _decode(encode_opus(audio), rate)
        assert abs(back.duration_s - audio.duration_s) < 1e-3
        count = min(len(samples), len(back.samples))
        kept = samples[:count].astype(np.float64)
        noise = kept - back.samples[:count]
        assert 10 * math.log10(np.square(kept).sum() / np.square(noise).sum()) > 14
        loudness = np.square(back.samples).sum() / np.square(kept).sum()
        assert abs(10 * math.log10(loudness)) < 0.2
        assert log_mel_distance(audio, back) < 1.6


def test_the_same_samples_give_the_same_bytes(chirp: Audio) -> None:
    """Streams of libsndfile differ by a random serial number; a wrong checksum does not decode."""

    def write() -> bytes:
        buffer = io.BytesIO()
        soundfile.write(buffer, chirp.samples, 16_000, format="OGG", subtype="OPUS")
        return buffer.getvalue()

    assert write() != write()
    assert encode_opus(chirp) == encode_opus(chirp)
    assert len(_decode(encode_opus(chirp), 16_000).samples) == 16_000


def test_broken_audio_plays_as_a_player_of_files_would_play_it(chirp: Audio) -> None:
    samples = 4 * chirp.samples
    samples[1000:1010] = np.nan
    samples[2000] = np.inf
    assert encode_opus(replace(chirp, samples=samples)) == encode_opus(
        replace(chirp, samples=np.clip(np.nan_to_num(samples, nan=0.0, posinf=1.0), -1, 1))
    )
    assert encode_opus(replace(chirp, samples=samples[:0])) == b""


def _evaluation(*utterances: tuple[int, float], damaged: int | None = None) -> Any:
    """Return utterances of 100 s (both models) by added errors and distance."""
    speech = SimpleNamespace(seconds=50.0)
    return SimpleNamespace(
        utterances=[
            SimpleNamespace(
                index=index,
                seed=0,
                added_errors=added,
                log_mel_distance_db=distance,
                reference=speech,
                candidate=speech,
            )
            for index, (added, distance) in enumerate(utterances)
        ],
        damage=SimpleNamespace(
            findings={"click": SimpleNamespace(utterances=1, index=damaged, seed=0)}
        )
        if damaged is not None
        else None,
    )


def test_the_worst_utterances_are_chosen_first() -> None:
    """Named damage, then added errors, then distance; what was not measured counts as far."""
    found = _evaluation((0, 1.0), (2, 0.5), (0, math.nan), (-1, 9.0), (0, 2.0), damaged=3)
    assert [one.index for one in choose_utterances(found)] == [3, 1, 2, 4, 0]


def test_no_more_is_chosen_than_fits() -> None:
    found = _evaluation(*[(0, float(index)) for index in range(20)])
    assert LONGEST_S == 540
    assert [one.index for one in choose_utterances(found)] == [19, 18, 17, 16, 15]
    found.utterances[19].reference = SimpleNamespace(seconds=600.0)
    assert [one.index for one in choose_utterances(found)] == [18, 17, 16, 15, 14]


def test_without_opus_there_is_a_warning_and_no_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "available_subtypes", lambda _: {"VORBIS": "Vorbis"})
    with pytest.warns(TTSCompressWarning, match="cannot write Opus"):
        assert encode_pairs(_evaluation((0, 1.0)), [], {}, EvaluationOptions()) == {}


def test_each_utterance_gets_its_own_audio(chirp: Audio, tmp_path: Any) -> None:
    """However many threads there are."""
    audios = {}
    for name, share in (("a", 4), ("b", 2), ("c", 1), ("d", 3)):
        path = tmp_path / f"{name}.wav"
        soundfile.write(path, chirp.samples[: 4000 * share], 16_000, subtype="FLOAT")
        audios[name] = path
    pairs: Any = [
        SimpleNamespace(index=0, seed=0, audio={"reference": "a", "candidate": "b"}),
        SimpleNamespace(index=1, seed=0, audio={"reference": "c", "candidate": "d"}),
    ]
    options = EvaluationOptions(jobs=3)
    found = encode_pairs(_evaluation((0, 1.0), (1, 1.0)), pairs, audios, options)

    def lengths(pair: Pair[bytes]) -> tuple[float, float]:
        before, after = (_decode(one, 16_000) for one in (pair.reference, pair.candidate))
        return before.duration_s, after.duration_s

    assert {key: lengths(pair) for key, pair in found.items()} == {
        (0, 0): (1.0, 0.5),
        (1, 0): (0.25, 0.75),
    }
