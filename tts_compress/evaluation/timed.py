"""Timings that are measured apart from the rest of an evaluation, on a machine with no other work.

They lie in the store, with the description of the machine they are of.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tts_compress.config import Config
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.stages import FreshProcess, Timings, time_models
from tts_compress.evaluation.store import Store, read_piece, write_piece
from tts_compress.evaluation.subject import Subject


class _Times(Config):
    """`Timings` of one model, for JSON."""

    spent: tuple[tuple[float, ...], ...]
    audio: tuple[tuple[float, ...], ...]
    fresh: tuple[FreshProcess, ...]


class TimedModels(Config):
    """Timings of two models, as a piece of the store."""

    models: str
    """Both fingerprints."""

    settings: tuple[int, int, int]
    """Threads, number of texts, and runs of each."""

    reference: _Times
    candidate: _Times
    environment: dict[str, Any]

    def timings(self) -> tuple[Timings, Timings]:
        """Return the timings of the reference and of the candidate."""
        return _timings(self.reference), _timings(self.candidate)


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
    found = TimedModels(
        models=_pair(models),
        settings=_settings(options),
        reference=_times(before),
        candidate=_times(after),
        environment=describe_environment(),
    )
    write_piece(store.timed_path(found.models), found)


def read_timed(
    store: Store, models: tuple[Subject, Subject], options: EvaluationOptions
) -> TimedModels:
    """Return what `time_pair` left.

    Raises:
        EvaluationError: It left nothing, or timed other models, or in another way.
    """
    pair, settings = _pair(models), _settings(options)
    found = read_piece(store.timed_path(pair), TimedModels, models=pair, settings=settings)
    if found is None:
        before, after = models
        raise EvaluationError(
            f"'{after.model.spec}' was not timed against '{before.model.spec}' with these "
            "settings; time them first"
        )
    return found


def _pair(models: tuple[Subject, Subject]) -> str:
    return " ".join(model.fingerprint for model in models)


def _settings(options: EvaluationOptions) -> tuple[int, int, int]:
    return options.threads, options.timing_texts, options.timing_runs


def _times(timings: Timings) -> _Times:
    return _Times(
        spent=tuple(map(tuple, timings.spent.tolist())),
        audio=tuple(map(tuple, timings.audio.tolist())),
        fresh=timings.fresh,
    )


def _timings(times: _Times) -> Timings:
    return Timings(
        spent=np.array(times.spent),
        audio=np.array(times.audio),
        fresh=times.fresh,
    )
