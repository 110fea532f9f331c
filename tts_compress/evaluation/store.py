"""Results of the stages on disk, piece by piece, so that a killed run goes on.

    synthesis/<model>/<text>-<seed>.wav     exact float samples; `-<speaker>` where there are some
    synthesis/<model>/<text>-<seed>.json    a `Synthesis`, written after its WAV file
    disturbed/<audio>.wav                   an inaudibly changed copy
    recordings/<audio>.wav                  audio of other programs
    analyses/<by>/<audio>.json              an `Analysis`, such as a transcript; may lie elsewhere
    timed/<pair>.json                       timings that were measured before the rest
    teacher-forced/<pair>.json              a finished comparison of language models
    teacher-forced/<pair>/                  tokens and scores while they are compared

Names are hashes of what a piece was made from, and a piece repeats them in full: one that belongs
to another model, text, seed or recognizer, or was cut short, counts as missing.

Until an evaluation is done they lie in the user's cache, which is cleared of what is a week old:

    evaluations/<output>/    of one evaluation, which goes on from there; gone when it is done
    analyses/<code>/         transcripts and measures, which other evaluations of the same audio use
    trainings/<unit>/        of a sweep's unit, which goes on from there; gone when it is done

`analyze` fills in what a recognizer, or the measure of a metric, finds in single audios.
"""

import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock, local
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from tts_compress.artifact import atomic_file, write_text_atomically
from tts_compress.audio import Audio, audio_sha256, read_wav, write_float_wav
from tts_compress.config import Config
from tts_compress.environment import code_hash
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.evaluation.metric import Measure, find_measures
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker, borrow
from tts_compress.folders import exclusive_folder, make_directory, temporary_folder
from tts_compress.models.base import Tokens

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

    def keep(self, kind: Literal["disturbed", "recordings"], audio: Audio) -> tuple[str, Path]:
        """Write audio that no job spoke; return the hash of its samples, and the WAV file."""
        key = audio_sha256(audio)
        path = self.root / kind / f"{key[:32]}.wav"
        write_float_wav(path, audio)
        return key, path

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


def write_tokens(path: Path, tokens: Tokens) -> None:
    """Write the tokens of a text, whole or not at all."""
    with atomic_file(path) as partial, partial.open("wb") as file:
        stop = -1 if tokens.stop is None else tokens.stop
        np.savez(file, ids=tokens.ids, chosen=tokens.chosen, stop=stop)


def read_tokens(path: Path) -> Tokens:
    """Return the tokens in a file that `write_tokens` wrote."""
    with np.load(path) as arrays:
        stop = int(arrays["stop"])
        return Tokens(ids=arrays["ids"], chosen=arrays["chosen"], stop=None if stop < 0 else stop)


def write_array(path: Path, values: npt.NDArray[np.float32]) -> None:
    """Write an array, such as scores, whole or not at all."""
    with atomic_file(path) as partial, partial.open("wb") as file:
        np.save(file, values)


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/tts-compress`, `~/.cache/tts-compress` without that variable."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # As the XDG Base Directory Specification wants it, a relative path is ignored.
    return (stated if stated.is_absolute() else Path.home() / ".cache") / "tts-compress"


@contextmanager
def open_store(output: Path | None, options: EvaluationOptions) -> Iterator[Store]:
    """Give the place of an evaluation's pieces; they are removed when the block ends well.

    Args:
        output: Folder of the report, which is made if it is not there, so that one which cannot be
            written is refused before the work; an evaluation without one does not go on where it
            ended.
        options: With `work`, that is the place, and nothing is removed. Other versions of this
            package leave it alone, unless it was filled for this evaluation (`timed_before`).

    Raises:
        ArtifactError: It cannot be created.
    """
    if output is not None:
        make_directory(output)
    if options.work is not None:
        if options.timed_before:
            yield Store(options.work)
            return
        root = options.work / _code(options)
        make_directory(root)
        with exclusive_folder(root, "evaluating", shown=options.work):
            yield Store(root)
        return
    cache = cache_folder()
    with ExitStack() as stack:
        try:
            folder = cache / "evaluations"
            folder.mkdir(parents=True, exist_ok=True)
            _remove_old(cache)
            if output is None:
                root = stack.enter_context(temporary_folder(folder))
            else:
                root = folder / short_hash(f"{output.absolute()}\n{_code(options)}")
                root.mkdir(exist_ok=True)
                stack.enter_context(exclusive_folder(root, "evaluating", shown=output))
        except OSError as error:
            raise ArtifactError(
                f"cannot keep work in '{cache}': {error.strerror or error}; name another folder "
                "with --work or XDG_CACHE_HOME"
            ) from error
        yield Store(root, cache / "analyses" / _code(options))
        shutil.rmtree(root, ignore_errors=True)


def _code(options: EvaluationOptions) -> str:
    """Return the hash of the code of evaluations and of the program of the workers.

    A changed recognizer or measure then finds no values of before.
    """
    return short_hash("\n".join([code_hash("evaluation"), *options.worker]))


def _remove_old(cache: Path) -> None:
    oldest = time.time() - _KEPT_S
    # A sweep's plan stays as long as its machines need.
    for kind in ("evaluations", "analyses", "trainings"):
        for folder, _, names in os.walk(cache / kind):  # ignores folders that others remove
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()


_LONGEST_TRIAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer:
    """A recognizer or a measure as the stages know it."""

    kind: Literal["recognizer", "measure"]
    spec: str
    """A recognizer's `NAME` or `NAME:MODEL`; the name of a measure."""

    setting: str
    """The language that a recognizer transcribes, as the suite names it; the settings of a measure,
    as JSON."""

    description: str
    """Its own description, by which values are kept."""

    device: str = "cpu"
    """`cuda` for one that works on a GPU."""

    @property
    def stage(self) -> str:
        """The name of its stage in the progress."""
        return "recognize" if self.kind == "recognizer" else f"measure {self.spec}"

    def start(self, options: EvaluationOptions) -> AbstractContextManager[Worker]:
        """Give a process with it until the block ends.

        Raises:
            EvaluationError: It does not start.
        """
        key = (self.kind, self.spec, self.setting, options.worker)
        start = partial(Worker, self.kind, self.spec, options, setting=self.setting)
        return borrow(options.kept, key, start)


def find_recognizer(spec: str, language: str, options: EvaluationOptions) -> Analyzer:
    """Start a recognizer once, so that one that cannot work fails before anything is spoken.

    Raises:
        EvaluationError: There is no such recognizer or model, or it does not know the language.
        MissingExtraError: The recognizer is not installed.
    """
    with Worker("recognizer", spec, options, setting=language) as worker:
        about = worker.ask("describe")
    return Analyzer(kind="recognizer", spec=spec, setting=language, **about)


def find_analyzer(measure: Measure, options: EvaluationOptions) -> Analyzer | None:
    """Return a measure with its settings; None where it is not to be done.

    Raises:
        EvaluationError: A setting is wrong, or a measure that is tried first cannot be opened.
    """
    settings = measure.settings(options)
    if settings is None:
        return None
    setting = json.dumps(settings, sort_keys=True)
    if measure.is_tried:
        brief = replace(options, timeout_s=min(options.timeout_s, _LONGEST_TRIAL_S))
        Worker("measure", measure.name, brief, setting=setting).close()
    description = f"{measure.name} {setting}"
    return Analyzer(kind="measure", spec=measure.name, setting=setting, description=description)


def find_analyzers(options: EvaluationOptions) -> dict[Measure, Analyzer]:
    """Return the measures that are to be done.

    Raises:
        EvaluationError: As of `find_analyzer`.
    """
    pairs = ((measure, find_analyzer(measure, options)) for measure in find_measures().values())
    return {measure: analyzer for measure, analyzer in pairs if analyzer is not None}


def analyze(
    store: Store,
    analyzer: Analyzer,
    audios: Iterable[tuple[str, Path]],
    options: EvaluationOptions,
    *,
    total: int,
    stage: str | None = None,
) -> dict[str, Any]:
    """Have the audio analysed that is not yet, while more of it is still being made.

    Args:
        store: Takes the values.
        analyzer: The recognizer or measure; it is not started if there is nothing to do.
        audios: Hashes of samples, and WAV files; each is analysed as soon as it comes.
        options: Settings of the worker processes.
        total: Number of audios that will come.
        stage: Name of this stage in the progress, in place of the analyzer's.

    Returns:
        The value of each audio by its hash: the hypothesis of a recognizer.

    Raises:
        EvaluationError: A process failed.
    """
    by, stage = analyzer.description, stage or analyzer.stage
    values: dict[str, Any] = {}
    done: list[str] = []
    keys: set[str] = set()
    lock, mine = Lock(), local()

    def ask(key: str, path: Path) -> None:
        """Ask the worker of this thread."""
        if not hasattr(mine, "worker"):
            mine.worker = stack.enter_context(analyzer.start(options))
        value = mine.worker.ask("analyze", path=path.absolute())["value"]
        write_piece(store.analysis_path(by, key), Analysis(by=by, audio=key, value=value))
        with lock:
            values[key] = value
            done.append(key)
            options.progress.advance(stage, len(done), total)

    options.progress.advance(stage, 0, total)
    with ExitStack() as stack:
        on_gpu = analyzer.device == "cuda"
        # Processes on a GPU would only take memory from each other, and from the model.
        pool = stack.enter_context(ThreadPoolExecutor(1 if on_gpu else options.jobs))
        # After the first failure nothing more is begun.
        stack.callback(pool.shutdown, cancel_futures=True)
        futures: deque[Future[None]] = deque()
        for key, path in list(audios) if on_gpu else audios:
            cached = read_piece(store.analysis_path(by, key), Analysis, by=by, audio=key)
            if cached is None and key not in keys:
                futures.append(pool.submit(ask, key, path))
            else:
                with lock:
                    total -= 1
                    options.progress.advance(stage, len(done), total)
            if cached is not None:
                values[key] = cached.value
            keys.add(key)
            while futures and futures[0].done():
                futures.popleft().result()
        for future in futures:
            future.result()
    return values
