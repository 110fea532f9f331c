"""Recordings that vocoders are judged on by sound, and sentences of a voice, by their words."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.qat.clips import find_recordings
from benchmarks.qat.spectra import SAMPLE_RATE, mel_spectrogram
from tts_compress.audio import Audio, Samples, read_wav
from tts_compress.evaluation.normalizers import NORMALIZERS
from tts_compress.evaluation.samples import resample
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load

_HOP = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """One recording, or one sentence that a voice spoke."""

    name: str
    recording: Audio
    """As long as what a vocoder makes of its spectrum."""

    mel: Any
    """Its log mel spectrum, shape `(1, 80, frames)`."""

    transcript: str
    """Its words, normalised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Clips to calibrate on, and clips to judge."""

    calibration: Sequence[Clip]
    judged: Sequence[Clip]


def read_clips(assets: Path, most: int) -> list[Clip]:
    """Return up to so many recordings with their transcripts.

    Raises:
        EvaluationError: There are fewer than four.
    """
    with (assets / "sentences" / "ljspeech_metadata_all.csv").open(encoding="utf-8") as file:
        rows = csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE)
        texts = {row[0]: NORMALIZERS["en-v2"](row[-1]) for row in rows}
    return [
        _clip(path.stem, read_wav(path).samples, texts[path.stem])
        for path in find_recordings(assets / "speech-ljspeech32" / "wavs", most)
    ]


def read_sentences(most: int) -> list[Clip]:
    """Return up to so many texts of `en-full`, spoken by the demo voice.

    A recognizer needs many words to tell two vocoders apart, and 32 recordings have 574. The
    vocoder knows neither this voice nor these texts.
    """
    suite, voice = read_suite("en-full"), load("demo")
    found = []
    for place, item in enumerate(suite.utterances[:most]):
        audio = voice.synthesize(item.text, seed=0)
        samples = resample(audio.samples, audio.sample_rate, SAMPLE_RATE)
        found.append(_clip(f"sentence-{place:03d}", samples, suite.transcript(item)))
    return found


def _clip(name: str, samples: Samples, transcript: str) -> Clip:
    mel = mel_spectrogram(samples)
    recording = Audio(samples=samples[: _HOP * mel.shape[-1]], sample_rate=SAMPLE_RATE)
    return Clip(name=name, recording=recording, mel=mel, transcript=transcript)


def split(clips: Sequence[Clip], sentences: Sequence[Clip] = ()) -> tuple[Fold, Fold]:
    """Return two folds: each half of the recordings is judged by what the other calibrated.

    So is one half of the sentences, which calibrate nothing.
    """
    odd, even = clips[::2], clips[1::2]
    return (
        Fold(calibration=odd, judged=[*even, *sentences[1::2]]),
        Fold(calibration=even, judged=[*odd, *sentences[::2]]),
    )
