"""Recordings for HiFi-GAN, which calibrate, train and judge, and sentences of a voice for words."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tts_compress.audio import Audio, Samples, read_wav, resample
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.normalizers import NORMALIZERS
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load

ASSETS = Path(
    os.environ.get("TTS_COMPRESS_ASSETS", Path(__file__).parents[2] / "shared" / "assets")
)
"""Folder of the vocoder and the recordings, which are no part of the project."""

SAMPLE_RATE = 22_050
_FFT, _HOP, _BANDS = 1024, 256, 80


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """One recording, or one sentence that a voice spoke."""

    name: str
    recording: Audio
    """As long as what a vocoder makes of its spectrum."""

    mel: Any
    """Its log mel spectrum, shape `(1, 80, frames)`."""

    transcript: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Clips to calibrate on, and clips to judge."""

    calibration: Sequence[Clip]
    judged: Sequence[Clip]


def read_clips(assets: Path, most: int) -> list[Clip]:
    """Return up to so many recordings with their transcripts."""
    folder = assets / "speech-ljspeech32" / "wavs"
    files = sorted(folder.glob("*.wav"))
    if len(files) < 4:
        raise EvaluationError(f"'{folder}' holds {len(files)} recordings; give 4 or more")
    with (assets / "sentences" / "ljspeech_metadata_all.csv").open(encoding="utf-8") as file:
        rows = csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE)
        texts = {row[0]: NORMALIZERS["en-v2"](row[-1]) for row in rows}
    return [_clip(path.stem, read_wav(path).samples, texts[path.stem]) for path in files[:most]]


def read_sentences(most: int) -> list[Clip]:
    """Return texts of `en-full`, spoken by the demo voice."""
    suite, voice = read_suite("en-full"), load("demo")
    clips = []
    for index, item in enumerate(suite.utterances[:most]):
        audio = voice.synthesize(item.text, seed=0)
        samples = resample(audio.samples, audio.sample_rate, SAMPLE_RATE)
        clips.append(_clip(f"sentence-{index:03d}", samples, suite.transcript(item)))
    return clips


def _clip(name: str, samples: Samples, transcript: str) -> Clip:
    mel = mel_spectrogram(samples)
    recording = Audio(samples=samples[: _HOP * mel.shape[-1]], sample_rate=SAMPLE_RATE)
    return Clip(name=name, recording=recording, mel=mel, transcript=transcript)


def split(clips: Sequence[Clip], sentences: Sequence[Clip] = ()) -> tuple[Fold, Fold]:
    """Return two folds: each half is judged by what the other calibrated."""
    odd, even = clips[::2], clips[1::2]
    return (
        Fold(calibration=odd, judged=[*even, *sentences[1::2]]),
        Fold(calibration=even, judged=[*odd, *sentences[::2]]),
    )


def middle_clip(clips: Sequence[Clip]) -> Clip:
    """Return the clip of middle length, on which vocoders are timed."""
    return sorted(clips, key=lambda clip: clip.mel.shape[-1])[len(clips) // 2]


def write_feeds(path: Path, clips: Sequence[Clip]) -> Path:
    """Write spectra as inputs of a graph."""
    np.savez(path, **{f"{call}/mel": clip.mel for call, clip in enumerate(clips)})
    return path


def mel_spectrogram(samples: Any) -> Any:
    """Return log mel spectra `(1, 80, frames)` in FP32 of samples in [-1, 1]."""
    padded = np.pad(samples, (_FFT - _HOP) // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    spectra = np.fft.rfft(frames * np.hanning(_FFT + 1)[:-1], axis=1)
    magnitudes = np.sqrt(np.abs(spectra) ** 2 + 1e-9)
    return np.log((_filters() @ magnitudes.T).clip(1e-5)).astype(np.float32)[None]


@cache
def _filters() -> Any:
    """Return Slaney's triangular filters of equal area, `(80, 513)`, from 0 to 8 kHz."""
    from transformers.audio_utils import mel_filter_bank

    scale = {"norm": "slaney", "mel_scale": "slaney"}
    return mel_filter_bank(_FFT // 2 + 1, _BANDS, 0.0, 8_000.0, SAMPLE_RATE, **scale).T
