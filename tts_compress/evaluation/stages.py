"""Work done by the models' processes: synthesis and timing."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from tts_compress.config import Config
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.intervals import FEWEST_PROCESSES
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import Store, Synthesis, SynthesisJob, read_piece, write_piece
from tts_compress.evaluation.subject import Subject
from tts_compress.progress import counted

_LONGEST_S = 60.0
"""Time that is spent on opening models; then no further pair of processes is begun, once there are
the fewest that an interval takes."""

_GROWING = 4
"""Texts of which the growth of memory is known: together they take about two of the longest, where
the turns take thirty."""


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
        for job in counted(jobs, options.progress, stage, len(jobs)):
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


class FreshProcess(Config):
    """A process that opened a model, after its imports were done, and spoke the longest text."""

    open_s: float = 0.0
    is_cold: bool = False
    """None of the model's files were in the system's cache then."""

    is_warm: bool = False
    """They were left there, where an earlier process had read them."""

    idle_bytes: int = 0
    """Memory before the model was opened."""

    peak_bytes: int = 0
    """The most memory until it had spoken."""

    operators: dict[str, int] = Field(default_factory=dict)
    """Numbers of a voice's operators, by their provider and type with a space between; empty where
    all are the CPU's."""

    gpu: dict[str, float] = Field(default_factory=dict)
    """Use of the GPU while the warm model spoke, as of `torch.devices.watched`; empty on a CPU."""

    @property
    def model_bytes(self) -> int:
        """The model's own share of that."""
        return self.peak_bytes - self.idle_bytes


class Timings(Config):
    """Measurements of one model in its system's own runtime."""

    spent: tuple[tuple[float, ...], ...]
    """Seconds of each run, shape `[texts, processes]`: each process spoke each text once."""

    first: tuple[tuple[float, ...], ...] = ()
    """Seconds until the first sound of each run, same shape; empty in older reports."""

    audio: tuple[tuple[float, ...], ...]
    """Seconds of audio it gave, same shape."""

    fresh: tuple[FreshProcess, ...] = (FreshProcess(),)
    """Measurements of those processes, which took turns with the other model's."""

    growth: tuple[tuple[int, int], ...] = ()
    """Characters of texts of growing length that one more process spoke, and its peak memory by
    then, bytes; empty in older reports."""


def choose_texts(texts: Sequence[str], most: int) -> list[str]:
    """Return up to `most` texts, from the shortest to the longest in even steps."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))
    steps = np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int)
    return [ordered[index] for index in steps]


def time_models(
    models: tuple[Subject, Subject], texts: Sequence[str], options: EvaluationOptions
) -> tuple[Timings, Timings]:
    """Time reference and candidate, text by text in turns, in several pairs of fresh processes.

    What a process draws for its life, such as the places of its memory, disturbs all its runs: only
    other processes show how far that goes. On a busy machine the model that is opened first is
    slower, by some per cent; so they take turns at that from pair to pair, and at speaking first
    from text to text.

    Raises:
        EvaluationError: A model's process failed, or spoke no sound at all.
    """
    chosen = choose_texts(texts, options.timing_texts)
    steps = options.timing_runs + 1
    options.progress.advance("time", 0, steps)
    with ThreadPoolExecutor(len(models)) as pool:  # nothing of it is timed
        rehearsals = pool.map(lambda model: _rehearse(model, chosen, options), models)
        modules, growth = zip(*rehearsals, strict=True)
    rounds: list[list[_Round]] = []
    spent_opening = 0.0
    while len(rounds) < options.timing_runs and (
        len(rounds) < FEWEST_PROCESSES or spent_opening < _LONGEST_S
    ):
        options.progress.advance("time", len(rounds) + 1, steps)
        warm, swapped = (bool(len(rounds) & bit) for bit in (2, 1))  # each in either order
        opening, pair = _time_fresh(models, modules, chosen, options, swapped=swapped, warm=warm)
        spent_opening += opening
        rounds.append(pair)
    options.progress.advance("time", steps, steps)
    reference, candidate = (
        Timings(
            spent=tuple(zip(*(pair[side].spent for pair in rounds), strict=True)),
            first=tuple(zip(*(pair[side].first for pair in rounds), strict=True)),
            audio=tuple(zip(*(pair[side].audio for pair in rounds), strict=True)),
            fresh=tuple(pair[side].fresh for pair in rounds),
            growth=growth[side],
        )
        for side in (0, 1)
    )
    for model, timings in zip(models, (reference, candidate), strict=True):
        if not any(map(any, timings.audio)):
            raise EvaluationError(f"'{model.model.spec}' speaks nothing in its own runtime")
    return reference, candidate


class _Round(NamedTuple):
    """Measurements of one process of a model: all but `fresh` have a run of each text."""

    fresh: FreshProcess
    spent: tuple[float, ...]
    first: tuple[float, ...]
    audio: tuple[float, ...]


def _rehearse(
    model: Subject, texts: Sequence[str], options: EvaluationOptions
) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Return the modules that opening a model and speaking import, and how its memory grows.

    Args:
        model: The model.
        texts: Texts, the shortest first.
        options: Settings of the process.
    """
    with model.start(replace(options, kept=None)) as worker:
        worker.ask("open_runtime", threads=options.threads, warm=True)
        growth = tuple(
            (len(text), int(worker.ask("speak", text=text)["peak_bytes"]))
            for text in choose_texts(texts, _GROWING)
        )
        modules: list[str] = worker.ask("inspect")["modules"]
        return modules, growth


def _time_fresh(
    models: tuple[Subject, Subject],
    modules: Sequence[list[str]],
    texts: Sequence[str],
    options: EvaluationOptions,
    *,
    swapped: bool,
    warm: bool,
) -> tuple[float, list[_Round]]:
    """Open both models in fresh processes and have them speak each text in turns.

    Args:
        models: Reference and candidate.
        modules: What each imports before it is opened.
        texts: Texts; the last and longest warms up, and takes the most memory.
        options: Settings of the processes.
        swapped: The candidate begins.
        warm: The models' files stay in the system's cache.

    Returns:
        The seconds until both were open and had warmed up, and what they gave, the reference first.
    """
    order = (1, 0) if swapped else (0, 1)
    begun = monotonic()
    with ExitStack() as stack:
        workers, fresh = _start(stack, models, modules, options), {}
        for side in order:
            opened = workers[side].ask("open_runtime", threads=options.threads, warm=warm)
            workers[side].ask("speak", text=texts[-1])
            used = workers[side].ask("inspect")
            figures = {"peak_bytes": used["peak_bytes"], "gpu": used.get("gpu", {})}
            fresh[side] = FreshProcess(is_warm=warm, **opened, **figures)
        opening = monotonic() - begun
        turns = []
        for text in texts:
            turns.append({side: workers[side].ask("speak", text=text) for side in order})
            order = order[::-1]
    return opening, [
        _Round(
            fresh=fresh[side],
            spent=tuple(turn[side]["seconds"] for turn in turns),
            first=tuple(turn[side].get("first_s", turn[side]["seconds"]) for turn in turns),
            audio=tuple(turn[side]["audio_s"] for turn in turns),
        )
        for side in (0, 1)
    ]


def _start(
    stack: ExitStack,
    models: Sequence[Subject],
    modules: Sequence[list[str]],
    options: EvaluationOptions,
) -> list[Worker]:
    """Start a process of each model, all at the same time, until a stack is unwound.

    Args:
        stack: Ends them.
        models: Models.
        modules: What each imports.
        options: Settings of the processes; none is kept.
    """

    def start(model: Subject, names: list[str]) -> Worker:
        worker = stack.enter_context(model.start(replace(options, kept=None)))
        worker.ask("import_modules", modules=names)
        return worker

    with ThreadPoolExecutor(len(models)) as pool:
        return list(pool.map(start, models, modules))


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
