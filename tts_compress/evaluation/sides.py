"""One model's share of an evaluation: a part of the texts is spoken and analysed into a store.

An evaluation that finds all shares in its store speaks and recognizes nothing.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tts_compress.evaluation.analysis import Analyzer, analyze
from tts_compress.evaluation.metric import Measure
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import OTHER_SEEDS, read_spoken, suite_jobs, write_disturbed
from tts_compress.evaluation.stages import synthesize
from tts_compress.evaluation.store import Store
from tts_compress.evaluation.subject import Subject
from tts_compress.evaluation.suite import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Texts of a suite, for one of the two models."""

    role: Literal["reference", "candidate"]
    model: Subject
    suite: Suite
    texts: Sequence[int]
    """Places in the suite."""


def fill_store(
    side: Side,
    recognizer: Analyzer,
    measures: Mapping[Measure, Analyzer],
    store: Store,
    options: EvaluationOptions,
) -> None:
    """Speak and analyse what an evaluation needs of one model; what is there is not repeated.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: A process failed.
    """
    audios: dict[str, list[tuple[str, Path]]] = {}
    count = len(side.texts) * (len(side.suite.seeds) + (2 if side.role == "reference" else 0))
    with closing(_speak(side, store, options, audios)) as spoken:
        analyze(store, recognizer, spoken, options, total=count)
    for measure, analyzer in measures.items():
        found = [audio for role in measure.roles for audio in audios.get(role, ())]
        if found:
            analyze(store, analyzer, found, options, total=len(found))


def _speak(
    side: Side,
    store: Store,
    options: EvaluationOptions,
    audios: dict[str, list[tuple[str, Path]]],
) -> Generator[tuple[str, Path], None, None]:
    """Yield what is to be recognized; note all audio by the role it has in a pair."""
    shifts = {side.role: 0, **({"other_seed": OTHER_SEEDS} if side.role == "reference" else {})}
    seeds = len(side.suite.seeds)
    for role, shift in shifts.items():
        jobs = suite_jobs(side.model, side.suite, shift, side.texts)
        noted = audios.setdefault(role, [])
        pieces = synthesize(store, side.model, jobs, options, stage=f"synthesize {role}")
        for place, piece in enumerate(pieces):
            noted.append((piece.audio, store.wav_path(piece)))
            # Of the baselines, a text's first seed is recognized.
            if role == side.role or place % seeds == 0:
                yield noted[-1]
            if role == "reference" and place % seeds == 0:
                copy = write_disturbed(store, read_spoken(store, piece))
                yield copy, store.disturbed_path(copy)
