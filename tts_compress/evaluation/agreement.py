"""Have two language models score the same tokens, one after the other, each in its own process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from tts_compress.evaluation.cost import choose_texts
from tts_compress.evaluation.recorded import RecordedModel
from tts_compress.evaluation.store import Compared, Comparison, make_directory
from tts_compress.evaluation.teacher_forced import compare_teacher_forced
from tts_compress.models.language_model import LanguageModel
from tts_compress.report.evaluation import TeacherForcedScores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.evaluation.options import EvaluationOptions
    from tts_compress.evaluation.process import Worker
    from tts_compress.evaluation.store import Store
    from tts_compress.evaluation.suite import Suite
    from tts_compress.evaluation.synthesize import Speaker
    from tts_compress.models.base import TTSModel

__all__ = ["are_language_models", "compare_language_models"]

_STAGE = "teacher-forced"


def are_language_models(models: Sequence[TTSModel]) -> bool:
    """Return whether all of them say which tokens they find probable."""
    return all(isinstance(model, LanguageModel) for model in models)


def compare_language_models(
    store: Store, speakers: tuple[Speaker, Speaker], suite: Suite, options: EvaluationOptions
) -> TeacherForcedScores:
    """Return how far the candidate's scores are from the reference's; what is done stays done.

    Args:
        store: Where tokens and scores go until they are compared.
        speakers: Reference and candidate.
        suite: Its texts, up to `options.teacher_forced_texts` of them, and its first seed.
        options: How workers are run.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: A model's process failed, or the scores do not compare.
    """
    texts = choose_texts([item.text for item in suite.utterances], options.teacher_forced_texts)
    comparison = Comparison(
        reference=speakers[0].fingerprint,
        candidate=speakers[1].fingerprint,
        texts=tuple(texts),
        seed=suite.seeds[0],
    )
    options.progress.advance(_STAGE, 0, 2 * len(texts))
    found = store.find_compared(comparison)
    if found is None:
        found = _compare(store, speakers, comparison, options)
        store.put_compared(Compared(comparison=comparison, scores=found))
    options.progress.advance(_STAGE, 2 * len(texts), 2 * len(texts))
    return found


def _compare(
    store: Store,
    speakers: tuple[Speaker, Speaker],
    comparison: Comparison,
    options: EvaluationOptions,
) -> TeacherForcedScores:
    folder = store.scores_path(comparison).absolute()
    make_directory(folder)
    texts = comparison.texts
    tokens = {text: folder / f"{index}.npz" for index, text in enumerate(texts)}
    recorded: list[RecordedModel] = []
    for role, speaker in zip(("reference", "candidate"), speakers, strict=True):
        scores = {text: folder / f"{index}-{role}.npy" for index, text in enumerate(texts)}
        record = RecordedModel(tokens=tokens, scores=scores)
        # The reference comes first, so its tokens are there when the candidate reads them.
        _record(speaker, record, comparison, options, done=len(recorded) * len(texts))
        recorded.append(record)
    compared = compare_teacher_forced(recorded[0], recorded[1], texts, seed=comparison.seed)
    return TeacherForcedScores(**asdict(compared), texts=len(texts))


def _record(
    speaker: Speaker,
    record: RecordedModel,
    comparison: Comparison,
    options: EvaluationOptions,
    *,
    done: int,
) -> None:
    """Write what a model says, as far as it is not said, and how it scores it."""
    with ExitStack() as stack:
        worker: Worker | None = None
        for index, text in enumerate(comparison.texts):
            options.progress.advance(_STAGE, done + index, 2 * len(comparison.texts))
            tokens, scores = record.tokens[text], record.scores[text]
            if tokens.is_file() and scores.is_file():
                continue
            worker = worker or stack.enter_context(speaker.start(options))
            if not tokens.is_file():
                worker.ask("say", text=text, seed=comparison.seed + index, path=str(tokens))
            worker.ask("read", text=text, tokens=str(tokens), path=str(scores))
