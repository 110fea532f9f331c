"""The recordings that vocoders are judged on: each half is judged by what the other calibrated."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.qat.clips import find_recordings
from benchmarks.qat.spectra import SAMPLE_RATE, mel_spectrogram
from tts_compress.audio import Audio, read_wav
from tts_compress.evaluation.normalizers import NORMALIZERS

_HOP = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """One recording."""

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
    found = []
    for path in find_recordings(assets / "speech-ljspeech32" / "wavs", most):
        samples = read_wav(path).samples
        mel = mel_spectrogram(samples)
        recording = Audio(samples=samples[: _HOP * mel.shape[-1]], sample_rate=SAMPLE_RATE)
        found.append(
            Clip(name=path.stem, recording=recording, mel=mel, transcript=texts[path.stem])
        )
    return found


def split(clips: Sequence[Clip]) -> tuple[Fold, Fold]:
    """Return two folds, so that every clip is judged once and never by what it calibrated."""
    odd, even = clips[::2], clips[1::2]
    return Fold(calibration=odd, judged=even), Fold(calibration=even, judged=odd)
