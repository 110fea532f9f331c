"""Recordings: every other one is trained on, the others are held out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.qat.spectra import SAMPLE_RATE, mel_spectrogram
from tts_compress.audio import Audio, read_wav
from tts_compress.errors import EvaluationError
from tts_compress.numerics.spectra import log_mel_distance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ASSETS = Path(
    os.environ.get("TTS_COMPRESS_ASSETS", Path(__file__).parents[3] / "shared" / "assets")
)
"""Folder of the vocoder and the recordings, which are no part of the project."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clips:
    """Log mel spectra `(1, 80, frames)`."""

    train: Sequence[Any]
    held_out: Sequence[Any]

    def sounds(self, vocoder: Callable[[Any], Any]) -> list[Audio]:
        """Return the audio of a vocoder for the clips that are held out."""
        return [
            Audio(samples=vocoder(mel).reshape(-1), sample_rate=SAMPLE_RATE)
            for mel in self.held_out
        ]

    def write_feeds(self, path: Path) -> Path:
        """Write the clips that are trained on as inputs of a graph."""
        np.savez(path, **{f"{call}/mel": mel for call, mel in enumerate(self.train)})
        return path


def read_clips(folder: Path, most: int) -> Clips:
    """Return at most so many clips of each kind.

    Raises:
        EvaluationError: The folder holds no recordings.
    """
    mels = [mel_spectrogram(read_wav(file).samples) for file in find_recordings(folder, 2 * most)]
    return Clips(train=mels[::2], held_out=mels[1::2])


def find_recordings(folder: Path, most: int) -> list[Path]:
    """Return at most so many recordings, by name.

    Raises:
        EvaluationError: The folder holds fewer than four.
    """
    files = sorted(folder.glob("*.wav"))
    if len(files) < 4:
        raise EvaluationError(f"'{folder}' holds {len(files)} recordings; give 4 or more")
    return files[:most]


def mean_distance(references: Sequence[Audio], candidates: Sequence[Audio]) -> float:
    """Return the mean log-mel distance in decibels."""
    pairs = zip(references, candidates, strict=True)
    return float(np.mean([log_mel_distance(*pair) for pair in pairs]))
