"""Results of the stages on disk, piece by piece, so that a killed run goes on.

    synthesis/<model>/<text>-<seed>.wav     exact float samples; `-<speaker>` where there are some
    synthesis/<model>/<text>-<seed>.json    a `Synthesis`, written after its WAV file
    disturbed/<audio>.wav                   an inaudibly changed copy
    analyses/<by>/<audio>.json              an `Analysis`, such as a transcript; may lie elsewhere
    timed/<pair>.json                       timings that were measured before the rest
    teacher-forced/<pair>.json              a finished comparison of language models
    teacher-forced/<pair>/                  tokens and scores while they are compared

Names are hashes of what a piece was made from, and a piece repeats them in full: one that belongs
to another model, text, seed or recognizer, or was cut short, counts as missing.

Until an evaluation is done they lie in the user's cache, which is cleared of what is a week old:

    evaluations/<output>/    of one evaluation, which goes on from there; gone when it is done
    analyses/<code>/         transcripts and measures, which other evaluations of the same audio use
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tts_compress.artifact import write_text_atomically
from tts_compress.audio import audio_sha256, read_wav
from tts_compress.config import Config
from tts_compress.environment import code_hash
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.folders import exclusive_folder, make_directory, temporary_folder

_Piece = TypeVar("_Piece", bound=BaseModel)

_KEPT_S = 7 * 24 * 3600.0


class SynthesisJob(Config):
    """A text to be spoken by a model with a seed."""

    model: str
    """Fingerprint of the model."""

    text: str
    seed: int
    speaker: str | None = None
    """None for a model of one voice."""


class Synthesis(SynthesisJob):
    """A finished job."""

    audio: str
    """Hash of the samples."""

    durations: tuple[int, ...] | None
    """Frames of each input symbol, where the system predicts them."""


class Analysis(Config):
    """The transcript of one audio by a recognizer, or the value that a measure gives it."""

    by: str
    """Description of the recognizer or measure, with versions."""

    audio: str
    value: Any
    """A transcript is not normalised."""


@dataclass(frozen=True, slots=True)
class Store:
    """The work directory of an evaluation: the only interface between its stages."""

    root: Path
    analyses: Path | None = None
    """Folder of analyses that other evaluations share; None for one in `root`."""

    def wav_path(self, job: SynthesisJob) -> Path:
        """Return the WAV file of a job; the `Synthesis` lies beside it."""
        name = f"{short_hash(job.text)}-{job.seed}"
        if job.speaker is not None:
            name = f"{name}-{short_hash(job.speaker)}"
        return self.root / "synthesis" / job.model[:16] / f"{name}.wav"

    def analysis_path(self, by: str, audio: str) -> Path:
        """Return the file of the analysis of an audio by a recognizer or a measure."""
        folder = self.analyses or self.root / "analyses"
        return folder / short_hash(by) / f"{audio[:32]}.json"

    def disturbed_path(self, audio: str) -> Path:
        """Return the WAV file of an inaudibly changed copy."""
        return self.root / "disturbed" / f"{audio[:32]}.wav"

    def timed_path(self, models: str) -> Path:
        """Return the file of the timings of a pair of models, by their joined fingerprints."""
        return self.root / "timed" / f"{short_hash(models)}.json"

    def find_synthesis(self, job: SynthesisJob) -> Synthesis | None:
        """Return a finished job whose WAV file is intact, or None."""
        wav = self.wav_path(job)
        piece = read_piece(wav.with_suffix(".json"), Synthesis, **job.model_dump())
        try:
            return piece if piece and audio_sha256(read_wav(wav)) == piece.audio else None
        except ModelError:
            return None


def short_hash(text: str) -> str:
    """Return a hash that is short enough for the name of a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_piece(path: Path, kind: type[_Piece], **made_from: object) -> _Piece | None:
    """Return a piece from its file; None if it is missing, damaged, or made from something else."""
    try:
        piece = kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return piece if piece.model_dump(include={*made_from}) == made_from else None


def write_piece(path: Path, piece: BaseModel) -> None:
    """Write a piece whole or not at all."""
    make_directory(path.parent)
    write_text_atomically(path, piece.model_dump_json() + "\n")


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/tts-compress`, `~/.cache/tts-compress` without that variable."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # As the XDG Base Directory Specification wants it, a relative path is ignored.
    return (given if given.is_absolute() else Path.home() / ".cache") / "tts-compress"


@contextmanager
def open_store(output: Path | None, options: EvaluationOptions) -> Iterator[Store]:
    """Give the place of an evaluation's pieces; they are removed when the block ends well.

    Args:
        output: Folder of the report; an evaluation without one does not go on where it ended.
        options: With `work`, that is the place, and nothing is removed.

    Raises:
        ArtifactError: It cannot be created.
    """
    if options.work is not None:
        make_directory(options.work)
        yield Store(options.work)
        return
    cache = cache_folder()
    with ExitStack() as stack:
        try:
            folder = cache / "evaluations"
            folder.mkdir(parents=True, exist_ok=True)
            _remove_old(cache)
            if output is None:
                place = stack.enter_context(temporary_folder(folder))
            else:
                place = folder / short_hash(str(output.absolute()))
                place.mkdir(exist_ok=True)
                stack.enter_context(exclusive_folder(place, "evaluating", shown=output))
        except OSError as error:
            raise ArtifactError(
                f"cannot keep work in '{cache}': {error.strerror or error}; name another folder "
                "with --work or XDG_CACHE_HOME"
            ) from error
        yield Store(place, cache / "analyses" / _code(options))
        shutil.rmtree(place, ignore_errors=True)


def _code(options: EvaluationOptions) -> str:
    """Return the hash of the code of evaluations and of the program of the workers.

    A changed recognizer or measure then finds no values of before.
    """
    return short_hash("\n".join([code_hash("evaluation"), *options.worker]))


def _remove_old(cache: Path) -> None:
    oldest = time.time() - _KEPT_S
    for path in cache.rglob("*"):
        with suppress(FileNotFoundError):  # another evaluation was faster
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
