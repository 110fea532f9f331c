"""Work done by the models' processes: synthesis and timing."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from tts_compress.config import Config
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.bootstrap import take_turns
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import (
    Store,
    Synthesis,
    SynthesisJob,
    read_piece,
    write_piece,
)
from tts_compress.evaluation.subject import Subject

_LONGEST_S = 60.0
"""No further pair of fresh processes is begun after that time."""


def synthesize(
    store: Store,
    model: Subject,
    jobs: Sequence[SynthesisJob],
    options: EvaluationOptions,
    *,
    stage: str,
) -> Iterator[Synthesis]:
    """Have a model speak the jobs that are not in the store yet; yield all in order.

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
    with ExitStack() as stack:
        worker: Worker | None = None
        for count, job in enumerate(jobs):
            options.progress.advance(stage, count, len(jobs))
            piece = store.find_synthesis(job)
            if piece is None:
                worker = worker or stack.enter_context(model.start(options))
                path = store.wav_path(job).absolute()
                answer = worker.ask(
                    "synthesize", text=job.text, seed=job.seed, path=path, speaker=job.speaker
                )
                durations = answer["durations"]
                piece = Synthesis(
                    **dict(job),
                    audio=answer["audio"],
                    durations=None if durations is None else tuple(durations),
                )
                write_piece(path.with_suffix(".json"), piece)
            yield piece
        options.progress.advance(stage, len(jobs), len(jobs))


class FreshProcess(Config):
    """A process that opened a model, after its imports were done, and spoke the longest text."""

    open_s: float = 0.0
    idle_bytes: int = 0
    """Memory before the model was opened."""

    peak_bytes: int = 0
    """The most memory until it had spoken."""

    @property
    def model_bytes(self) -> int:
        """The model's own share of that."""
        return self.peak_bytes - self.idle_bytes


class Timings(Config):
    """Measurements of one model in its system's own runtime."""

    spent: tuple[tuple[float, ...], ...]
    """Seconds of each run, shape `[texts, runs]`."""

    audio: tuple[tuple[float, ...], ...]
    """Seconds of audio it gave, same shape."""

    fresh: tuple[FreshProcess, ...] = (FreshProcess(),)
    """Measurements of fresh processes, which took turns with the other model's."""


def choose_texts(texts: Sequence[str], most: int) -> list[str]:
    """Return up to `most` texts, from the shortest to the longest in even steps."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))
    steps = np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int)
    return [ordered[index] for index in steps]


def time_models(
    models: tuple[Subject, Subject], texts: Sequence[str], options: EvaluationOptions
) -> tuple[Timings, Timings]:
    """Time reference and candidate, run by run in turns, then load both in fresh processes.

    Raises:
        EvaluationError: A model's process failed, or spoke no sound at all.
    """
    chosen = choose_texts(texts, options.timing_texts)
    options.progress.advance("time", 0, len(chosen) + 2)
    answers = []
    with models[0].start(options) as first, models[1].start(options) as second:
        workers = (first, second)
        for worker in workers:
            worker.ask("open_runtime", threads=options.threads, modules=[])
            for text in (chosen[0], chosen[-1]):
                worker.ask("speak", text=text)
        for place, text in enumerate(chosen):
            options.progress.advance("time", place, len(chosen) + 2)
            runs = [partial(worker.ask, "speak", text=text) for worker in workers]
            answers.append(take_turns(runs, options.timing_runs))
        modules = [worker.ask("inspect")["modules"] for worker in workers]
    spent, audio = (
        np.array([[[one[name] for one in turn] for turn in turns] for turns in answers])
        for name in ("seconds", "audio_s")
    )  # [texts, runs, models]
    for side, model in enumerate(models):
        if not audio[..., side].all():
            raise EvaluationError(f"'{model.model.spec}' speaks nothing in its own runtime")
    options.progress.advance("time", len(chosen), len(chosen) + 2)
    opened = [
        partial(_open_fresh, model, chosen[-1], imported, options)
        for model, imported in zip(models, modules, strict=True)
    ]
    begun = monotonic()
    fresh = take_turns(opened, 1)
    while len(fresh) < options.timing_runs and monotonic() - begun < _LONGEST_S:
        fresh += take_turns(opened, 1)
    options.progress.advance("time", len(chosen) + 2, len(chosen) + 2)
    reference, candidate = (
        Timings(
            spent=tuple(map(tuple, spent[..., side].tolist())),
            audio=tuple(map(tuple, audio[..., side].tolist())),
            fresh=tuple(turn[side] for turn in fresh),
        )
        for side in (0, 1)
    )
    return reference, candidate


def _open_fresh(
    model: Subject, text: str, modules: list[str], options: EvaluationOptions
) -> FreshProcess:
    """Have a fresh process import, open a model, and speak a text."""
    with model.start(replace(options, kept=None)) as worker:
        opened = worker.ask("open_runtime", threads=options.threads, modules=modules)
        worker.ask("speak", text=text)
        return FreshProcess(**opened, peak_bytes=worker.ask("inspect")["peak_bytes"])


class TimedModels(Config):
    """Timings of two models that were taken apart from the rest of an evaluation.

    On a machine with no other work, which they describe; a piece of the store.
    """

    models: str
    """Both fingerprints."""

    settings: tuple[int, int, int]
    """Threads, number of texts, and runs of each."""

    reference: Timings
    candidate: Timings
    environment: dict[str, Any]
    """The machine that they were timed on."""


def time_pair(
    store: Store,
    models: tuple[Subject, Subject],
    texts: Sequence[str],
    options: EvaluationOptions,
) -> None:
    """Time reference and candidate, and leave the result in the store.

    Raises:
        EvaluationError: A model's process failed, or spoke no sound at all.
    """
    before, after = time_models(models, texts, options)
    timed = TimedModels(
        models=_pair(models),
        settings=_settings(options),
        reference=before,
        candidate=after,
        environment=describe_environment(),
    )
    write_piece(store.timed_path(timed.models), timed)


def read_timed(
    store: Store, models: tuple[Subject, Subject], options: EvaluationOptions
) -> TimedModels:
    """Return what `time_pair` left.

    Raises:
        EvaluationError: It left nothing, or timed other models, or in another way.
    """
    pair, settings = _pair(models), _settings(options)
    timed = read_piece(store.timed_path(pair), TimedModels, models=pair, settings=settings)
    if timed is None:
        before, after = models
        raise EvaluationError(
            f"'{after.model.spec}' was not timed against '{before.model.spec}' with these "
            "settings; time them first"
        )
    return timed


def _pair(models: tuple[Subject, Subject]) -> str:
    return " ".join(model.fingerprint for model in models)


def _settings(options: EvaluationOptions) -> tuple[int, int, int]:
    return options.threads, options.timing_texts, options.timing_runs
