"""Work done by the models' processes: synthesis, recognition of the audio, timing."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import (
    Store,
    Synthesis,
    SynthesisJob,
    Transcript,
    read_piece,
    write_piece,
)
from tts_compress.evaluation.subject import Subject


def synthesize(
    store: Store,
    model: Subject,
    jobs: Sequence[SynthesisJob],
    options: EvaluationOptions,
    *,
    stage: str,
) -> list[Synthesis]:
    """Have a model speak the jobs that are not in the store yet; return all in order.

    Args:
        store: Takes the audio.
        model: The model; it is not started if there is nothing to do.
        jobs: Texts and seeds.
        options: Settings of the worker processes.
        stage: Name of this stage in the progress.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: The model's process failed.
    """
    done: list[Synthesis] = []
    with ExitStack() as stack:
        worker: Worker | None = None
        for count, job in enumerate(jobs):
            options.progress.advance(stage, count, len(jobs))
            found = store.find_synthesis(job)
            if found is None:
                worker = worker or stack.enter_context(model.start(options))
                path = store.wav_path(job).absolute()
                answer = worker.ask(
                    "synthesize", text=job.text, seed=job.seed, path=path, speaker=job.speaker
                )
                durations = answer["durations"]
                found = Synthesis(
                    **dict(job),
                    audio=answer["audio"],
                    durations=None if durations is None else tuple(durations),
                )
                write_piece(path.with_suffix(".json"), found)
            done.append(found)
        options.progress.advance(stage, len(jobs), len(jobs))
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A recognizer as the stages know it."""

    given: str
    """`NAME` or `NAME:MODEL`."""

    language: str
    """The language that it transcribes, as the suite names it."""

    description: str
    """Its own description, by which transcripts are kept."""

    device: str
    """`cuda` for one that works on a GPU."""


def open_listener(given: str, language: str, options: EvaluationOptions) -> Listener:
    """Start a recognizer once, so that one that cannot work fails before anything is spoken.

    Raises:
        EvaluationError: There is no such recognizer or model, or it does not know the language.
        MissingExtraError: The recognizer is not installed.
    """
    with Worker("recognizer", given, options, language=language) as worker:
        return Listener(given=given, language=language, **worker.ask("describe"))


def recognize(
    store: Store,
    recognizer: Listener,
    audios: Mapping[str, Path],
    options: EvaluationOptions,
    *,
    stage: str = "recognize",
) -> dict[str, str]:
    """Have a recognizer transcribe the audio that has no transcript yet.

    Args:
        store: Takes the transcripts.
        recognizer: The recognizer; it is not started if there is nothing to do.
        audios: WAV files by the hash of their samples.
        options: Settings of the worker processes.
        stage: Name of this stage in the progress.

    Returns:
        The hypothesis of each audio by its hash.

    Raises:
        EvaluationError: A recognizer's process failed.
    """
    name = recognizer.description
    found: dict[str, str] = {}
    idle: SimpleQueue[Worker] = SimpleQueue()
    with ExitStack() as stack:

        def start() -> Worker:
            worker = Worker("recognizer", recognizer.given, options, language=recognizer.language)
            return stack.enter_context(worker)

        def transcribe(key: str) -> Transcript:
            worker = idle.get()
            try:
                answer = worker.ask("transcribe", path=audios[key].absolute())
            finally:
                idle.put(worker)
            made = Transcript(recognizer=name, audio=key, hypothesis=answer["hypothesis"])
            write_piece(store.transcript_path(name, key), made)
            return made

        for key in audios:
            path = store.transcript_path(name, key)
            if known := read_piece(path, Transcript, recognizer=name, audio=key):
                found[key] = known.hypothesis
        missing = [key for key in audios if key not in found]
        # Processes on a GPU would only take memory from each other.
        most = 1 if recognizer.device == "cuda" else options.jobs
        jobs = min(most, len(missing))
        for _ in range(jobs):
            idle.put(start())
        options.progress.advance(stage, len(found), len(audios))
        pool = stack.enter_context(ThreadPoolExecutor(max(1, jobs)))
        # After the first failure nothing more is begun.
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in as_completed([pool.submit(transcribe, key) for key in missing]):
            found[future.result().audio] = future.result().hypothesis
            options.progress.advance(stage, len(found), len(audios))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Measurements of one model in its system's own runtime."""

    spent: npt.NDArray[np.float64]
    """Seconds of each run, shape `[texts, runs]`."""

    audio: npt.NDArray[np.float64]
    """Seconds of audio it gave, same shape."""

    open_s: float = 0.0
    """Time to open it in a fresh process whose imports are done."""

    idle_bytes: int = 0
    """Memory of that process before; `peak_bytes` after it spoke the longest text."""

    peak_bytes: int = 0


def choose_texts(texts: Sequence[str], most: int) -> list[str]:
    """Return up to `most` texts, from the shortest to the longest in even steps."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))
    steps = np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int)
    return [ordered[index] for index in steps]


def time_models(
    models: tuple[Subject, Subject], texts: Sequence[str], options: EvaluationOptions
) -> tuple[Timings, Timings]:
    """Time reference and candidate, run by run in turns, then load each in a fresh process.

    Raises:
        EvaluationError: A model's process failed, or spoke no sound at all.
    """
    chosen = choose_texts(texts, options.timing_texts)
    spent, audio = np.zeros((2, 2, len(chosen), options.timing_runs))  # of both models
    # What disturbs the machine for a while disturbs both models, because they take turns.
    with models[0].start(options) as first, models[1].start(options) as second:
        workers = (first, second)
        for worker in workers:
            worker.ask("open_runtime", threads=options.threads, modules=[])
            for text in (chosen[0], chosen[-1]):
                worker.ask("speak", text=text)
        for place, text in enumerate(chosen):
            options.progress.advance("time", place, len(chosen))
            for run in range(options.timing_runs):
                for side, worker in enumerate(workers):
                    answer = worker.ask("speak", text=text)
                    spent[side, place, run] = answer["seconds"]
                    audio[side, place, run] = answer["audio_s"]
        options.progress.advance("time", len(chosen), len(chosen))
        modules = [worker.ask("inspect")["modules"] for worker in workers]
    found = []
    for side, model in enumerate(models):
        if not audio[side].all():
            raise EvaluationError(f"'{model.model.spec}' speaks nothing in its own runtime")
        with model.start(options) as worker:
            opened = worker.ask("open_runtime", threads=options.threads, modules=modules[side])
            worker.ask("speak", text=chosen[-1])
            peak = worker.ask("inspect")["peak_bytes"]
        found.append(Timings(spent=spent[side], audio=audio[side], **opened, peak_bytes=peak))
    return found[0], found[1]
