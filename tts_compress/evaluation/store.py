"""What the stages leave for each other on disk, piece by piece, so that a killed run goes on.

    synthesis/<model>/<text>-<seed>.wav     exact float samples
    synthesis/<model>/<text>-<seed>.json    a `Spoken`, written after its WAV file
    recognition/<recognizer>/<audio>.json   a `Heard`
    teacher-forced/<pair>.json              a `Compared`
    teacher-forced/<pair>/                  tokens and scores while they are compared

Names are hashes of what a piece was made from, and a piece repeats them in full: one that belongs
to another model, text, seed or recognizer, or was cut short, counts as missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import ValidationError

from tts_compress.artifact import sha256_of, write_text_atomically
from tts_compress.audio import Audio, read_wav, write_wav
from tts_compress.config import Config
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.report.evaluation import TeacherForcedScores  # noqa: TC001  pydantic reads it

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.models.base import ModelFiles

__all__ = [
    "Compared",
    "Comparison",
    "Heard",
    "Spoken",
    "Store",
    "audio_sha256",
    "fingerprint",
    "write_float_wav",
]

_Piece = TypeVar("_Piece", bound=Config)


class Spoken(Config):
    """One text spoken by one model with one seed."""

    model: str
    """Fingerprint of the model."""

    text: str
    seed: int
    audio: str
    """Hash of the samples."""

    durations: tuple[int, ...] | None
    """Frames of each input symbol, where the system predicts them."""


class Heard(Config):
    """What a recognizer made of one audio."""

    recognizer: str
    """Its description, with versions."""

    audio: str
    hypothesis: str
    """Not normalised."""


class Comparison(Config):
    """Which language models were compared on what."""

    reference: str
    """Fingerprint of the model that speaks."""

    candidate: str
    """Of the model that only reads what the other says."""

    texts: tuple[str, ...]
    seed: int
    """Of the first text; each further one has the next."""

    @property
    def name(self) -> str:
        """What its files are called."""
        return _short(self.model_dump_json())


class Compared(Config):
    """What a comparison of language models found."""

    comparison: Comparison
    scores: TeacherForcedScores


@dataclass(frozen=True, slots=True)
class Store:
    """The work directory of an evaluation: the only interface between its stages."""

    root: Path

    def wav_path(self, model: str, text: str, seed: int) -> Path:
        """Return where the samples of a `Spoken` are."""
        return self.root / "synthesis" / model[:16] / f"{_short(text)}-{seed}.wav"

    def find_spoken(self, model: str, text: str, seed: int) -> Spoken | None:
        """Return a finished piece of synthesis whose WAV file is intact, or None."""
        wav = self.wav_path(model, text, seed)
        spoken = _read(wav.with_suffix(".json"), Spoken)
        if spoken is None or (spoken.model, spoken.text, spoken.seed) != (model, text, seed):
            return None
        try:
            return spoken if audio_sha256(read_wav(wav)) == spoken.audio else None
        except ModelError:
            return None

    def put_spoken(self, spoken: Spoken) -> None:
        """Record a piece of synthesis whose WAV file is written."""
        wav = self.wav_path(spoken.model, spoken.text, spoken.seed)
        write_text_atomically(wav.with_suffix(".json"), spoken.model_dump_json() + "\n")

    def find_heard(self, recognizer: str, audio: str) -> Heard | None:
        """Return what a recognizer made of an audio, or None if it has not heard it."""
        heard = _read(self._heard_path(recognizer, audio), Heard)
        if heard is None or (heard.recognizer, heard.audio) != (recognizer, audio):
            return None
        return heard

    def put_heard(self, heard: Heard) -> None:
        """Record what was heard."""
        path = self._heard_path(heard.recognizer, heard.audio)
        make_directory(path.parent)
        write_text_atomically(path, heard.model_dump_json() + "\n")

    def scores_path(self, comparison: Comparison) -> Path:
        """Return the folder of tokens and scores, which may not exist."""
        return self.root / "teacher-forced" / comparison.name

    def find_compared(self, comparison: Comparison) -> TeacherForcedScores | None:
        """Return what a comparison found, or None if it was not finished."""
        compared = _read(self._compared_path(comparison), Compared)
        if compared is None or compared.comparison != comparison:
            return None
        return compared.scores

    def put_compared(self, compared: Compared) -> None:
        """Record what a comparison found; tokens and scores, which are large, are removed."""
        path = self._compared_path(compared.comparison)
        make_directory(path.parent)
        write_text_atomically(path, compared.model_dump_json() + "\n")
        shutil.rmtree(self.scores_path(compared.comparison), ignore_errors=True)

    def _compared_path(self, comparison: Comparison) -> Path:
        return self.root / "teacher-forced" / f"{comparison.name}.json"

    def _heard_path(self, recognizer: str, audio: str) -> Path:
        return self.root / "recognition" / _short(recognizer) / f"{audio[:32]}.json"


def audio_sha256(audio: Audio) -> str:
    """Return the hash of samples and rate; files differ by time stamps in their headers."""
    digest = hashlib.sha256(f"{audio.sample_rate} Hz\n".encode())
    digest.update(np.ascontiguousarray(audio.samples, dtype="<f4").tobytes())
    return digest.hexdigest()


def fingerprint(files: ModelFiles) -> str:
    """Return the hash of everything that decides how a model speaks.

    A Piper voice speaks at another speed when its `.onnx.json` says so, with the same weights.
    """
    paths = (*files.weights, *files.settings)
    lines = [f"{sha256_of(path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def make_directory(path: Path) -> None:
    """Create a directory and its parents.

    Raises:
        ArtifactError: It cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot create '{path}': {error.strerror or error}") from error


def write_float_wav(path: Path, audio: Audio) -> None:
    """Write exact samples to a file that is never seen half-written."""
    make_directory(path.parent)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        write_wav(partial, audio, encoding="FLOAT")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path, kind: type[_Piece]) -> _Piece | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
