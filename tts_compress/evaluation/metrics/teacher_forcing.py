"""Distance of a compressed language model's scores from the original's, token by token.

Left to themselves two language models diverge at the first token that differs, and from there on
nothing compares. So both read the same tokens, those that the reference speaks with a seed
(teacher forcing), and are asked at each step for the next one. Positions count where the reference
chose a sound: not where a codebook has not begun, is over, or a token is forced.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.config import Config
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Metric, Record, Row, Term
from tts_compress.evaluation.stages import choose_texts
from tts_compress.evaluation.store import (
    make_directory,
    partial_file,
    read_piece,
    short_hash,
    write_piece,
)
from tts_compress.models.language_model import LanguageModel, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

    from tts_compress.evaluation.model_ref import ModelRef
    from tts_compress.evaluation.options import EvaluationOptions
    from tts_compress.evaluation.pairs import Run
    from tts_compress.evaluation.process import Worker
    from tts_compress.evaluation.store import Store
    from tts_compress.evaluation.suite import Suite

__all__ = [
    "METRICS",
    "TeacherForcing",
    "compare_language_models",
    "compare_logits",
    "compare_teacher_forced",
    "read_tokens",
    "write_scores",
    "write_tokens",
]

_STAGE = "teacher-forced"


class TeacherForcing(Record):
    """Difference of the candidate's scores from the reference's, over all positions."""

    agreement: float
    """Share of positions with the same most probable token, in [0, 1]."""

    kl_nats: float
    """Mean Kullback-Leibler divergence of the candidate's distribution from the reference's."""

    logit_distance: float
    """RMS difference of the scores, relative to the RMS of the reference's; 0 is equal.

    Each position's scores are taken from their mean, which no probability depends on.
    """

    positions: int
    """Tokens compared: steps times codebooks, without those that are forced or special."""

    texts: int


class _Comparison(Config):
    """The language models that are compared, and on which texts."""

    reference: str
    """Fingerprint of the model that speaks."""

    candidate: str
    """Fingerprint of the model that only reads the other's tokens."""

    texts: tuple[str, ...]
    seed: int
    """Seed of the first text; each further one has the next."""


class _Compared(Config):
    """The result of a comparison, as a piece of the store."""

    comparison: _Comparison
    scores: TeacherForcing


def compare_language_models(
    store: Store, models: tuple[ModelRef, ModelRef], suite: Suite, options: EvaluationOptions
) -> TeacherForcing:
    """Return how far the candidate's scores are from the reference's; what is done stays done.

    Each model runs in its own process, one after the other; tokens and scores, which are large, go
    to the disk until they are compared.

    Args:
        store: Takes tokens and scores, and the result.
        models: Reference and candidate.
        suite: Its texts, up to `options.teacher_forced_texts` of them, and its first seed.
        options: How workers are run.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: A model's process failed, or the scores do not compare.
    """
    texts = choose_texts([item.text for item in suite.utterances], options.teacher_forced_texts)
    comparison = _Comparison(
        reference=models[0].fingerprint,
        candidate=models[1].fingerprint,
        texts=tuple(texts),
        seed=suite.seeds[0],
    )
    name = short_hash(comparison.model_dump_json())
    path, folder = (store.root / "teacher-forced" / part for part in (f"{name}.json", name))
    options.progress.advance(_STAGE, 0, 2 * len(texts))
    known = read_piece(path, _Compared)
    if known is not None and known.comparison == comparison:
        found = known.scores
    else:
        make_directory(folder)
        # The reference comes first, so its tokens are there when the candidate reads them.
        for place, (role, model) in enumerate(zip(("reference", "candidate"), models, strict=True)):
            _record(model, role, folder.absolute(), comparison, options, done=place * len(texts))
        sums = _Sums()
        for index in range(len(texts)):
            before, after = (
                np.load(_scores_path(folder, index, role), allow_pickle=False)
                for role in ("reference", "candidate")
            )
            tokens = read_tokens(folder / f"{index}.npz")
            sums = sums.plus(_compare(before, after, tokens.chosen))
        found = sums.result()
        write_piece(path, _Compared(comparison=comparison, scores=found))
        shutil.rmtree(folder, ignore_errors=True)
    options.progress.advance(_STAGE, 2 * len(texts), 2 * len(texts))
    return found


def _record(
    model: ModelRef,
    role: str,
    folder: Path,
    comparison: _Comparison,
    options: EvaluationOptions,
    *,
    done: int,
) -> None:
    """Write the tokens a model speaks, where they are missing, and its scores of them."""
    with ExitStack() as stack:
        worker: Worker | None = None
        for index, text in enumerate(comparison.texts):
            options.progress.advance(_STAGE, done + index, 2 * len(comparison.texts))
            tokens, scores = folder / f"{index}.npz", _scores_path(folder, index, role)
            if tokens.is_file() and scores.is_file():
                continue
            worker = worker or stack.enter_context(model.start(options))
            if not tokens.is_file():
                worker.ask("say", text=text, seed=comparison.seed + index, path=str(tokens))
            worker.ask("read", text=text, tokens=str(tokens), path=str(scores))


def _scores_path(folder: Path, index: int, role: str) -> Path:
    return folder / f"{index}-{role}.npy"


def write_tokens(path: Path, tokens: Tokens) -> None:
    """Write the tokens of a text, whole or not at all."""
    with partial_file(path) as partial, partial.open("wb") as file:
        np.savez(file, ids=tokens.ids, chosen=tokens.chosen)


def read_tokens(path: Path) -> Tokens:
    """Return what `write_tokens` wrote."""
    with np.load(path, allow_pickle=False) as found:
        return Tokens(ids=found["ids"], chosen=found["chosen"])


def write_scores(path: Path, scores: npt.NDArray[np.float32]) -> None:
    """Write scores, shape `[S, K, V]`, whole or not at all."""
    with partial_file(path) as partial, partial.open("wb") as file:
        np.save(file, scores)


def compare_teacher_forced(
    reference: LanguageModel, candidate: LanguageModel, texts: Iterable[str], *, seed: int
) -> TeacherForcing:
    """Return the same for two models in this process.

    Args:
        reference: Speaks the texts.
        candidate: Only reads the reference's tokens.
        texts: Texts to speak; the text at index i is spoken with noise of `seed + i`.
        seed: Chooses the noise.

    Raises:
        EvaluationError: There is nothing to compare, or scores are not finite or do not fit.
        TextError: A text cannot be spoken.
    """
    sums = _Sums()
    for index, text in enumerate(texts):
        tokens = reference.generate_tokens(text, seed=seed + index)
        scores = reference.logits(text, tokens), candidate.logits(text, tokens)
        sums = sums.plus(_compare(*scores, tokens.chosen))
    return sums.result()


def compare_logits(
    reference: npt.NDArray[np.float32],
    candidate: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.bool_],
) -> TeacherForcing:
    """Return how far scores are from others for the same tokens.

    Args:
        reference: Scores, shape `[S, K, V]`.
        candidate: The same of the other model.
        chosen: The positions that count, shape `[S, K]`.

    Raises:
        EvaluationError: The shapes differ, no position counts, or scores are not finite.
    """
    return _compare(reference, candidate, chosen).result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Sums over positions, which add up over texts."""

    agreements: int = 0
    nats: float = 0.0
    squared_difference: float = 0.0
    squared_reference: float = 0.0
    positions: int = 0
    texts: int = 0

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(
            agreements=self.agreements + other.agreements,
            nats=self.nats + other.nats,
            squared_difference=self.squared_difference + other.squared_difference,
            squared_reference=self.squared_reference + other.squared_reference,
            positions=self.positions + other.positions,
            texts=self.texts + other.texts,
        )

    def result(self) -> TeacherForcing:
        if not self.positions:
            raise EvaluationError("the reference chose no tokens to compare; give other texts")
        if self.squared_reference > 0:
            distance = (self.squared_difference / self.squared_reference) ** 0.5
        else:  # a reference that finds all tokens alike
            distance = float("inf") if self.squared_difference > 0 else 0.0
        return TeacherForcing(
            agreement=self.agreements / self.positions,
            kl_nats=self.nats / self.positions,
            logit_distance=distance,
            positions=self.positions,
            texts=self.texts,
        )


def _compare(
    reference: npt.NDArray[np.float32],
    candidate: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.bool_],
) -> _Sums:
    if reference.shape != candidate.shape or reference.shape[:2] != chosen.shape:
        raise EvaluationError(
            f"scores of shapes {reference.shape} and {candidate.shape} for tokens of shape "
            f"{chosen.shape} do not belong together; compare models of one architecture"
        )
    sums = _Sums(texts=1)
    # One codebook at a time: in double precision all of them would be many times the scores.
    for book in range(chosen.shape[1]):
        where = chosen[:, book]
        pair = reference[where, book], candidate[where, book]
        for name, scores in zip(("reference", "candidate"), pair, strict=True):
            if not np.isfinite(scores).all():
                raise EvaluationError(
                    f"the {name}'s scores of codebook {book} are not finite; its weights are "
                    "damaged or were compressed too far"
                )
        sums = sums.plus(_compare_rows(*pair))
    return sums


def _compare_rows(reference: npt.NDArray[np.float32], candidate: npt.NDArray[np.float32]) -> _Sums:
    """Compare scores, shape `[P, V]`."""
    first, second = _centred(reference), _centred(candidate)
    known, guessed = _log_probabilities(first), _log_probabilities(second)
    nats = (np.exp(known) * (known - guessed)).sum(axis=-1)
    return _Sums(
        agreements=int((reference.argmax(axis=-1) == candidate.argmax(axis=-1)).sum()),
        # Never below zero but for rounding.
        nats=float(np.maximum(nats, 0).sum()),
        squared_difference=float(np.square(second - first).sum()),
        squared_reference=float(np.square(first).sum()),
        positions=len(reference),
    )


def _centred(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = scores.astype(np.float64)
    centred: npt.NDArray[np.float64] = wide - wide.mean(axis=-1, keepdims=True)
    return centred


def _log_probabilities(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    below = scores - scores.max(axis=-1, keepdims=True)
    found: npt.NDArray[np.float64] = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return found


def _compute(run: Run) -> TeacherForcing | None:
    models = [subject.model for subject in run.models]
    if not (run.options.teacher_forced_texts and all(isinstance(m, LanguageModel) for m in models)):
        return None
    refs = (run.models[0].ref, run.models[1].ref)
    return compare_language_models(run.store, refs, run.suite, run.options)


def _rows(scores: TeacherForcing, _: object) -> list[Row]:
    counted = f"{_count(scores.positions, 'token')}, {_count(scores.texts, 'text')}"
    kl, agreement = formatting.nats(scores.kl_nats), formatting.percent(scores.agreement)
    distance = formatting.percent(scores.logit_distance)
    return [
        Row(label="Token agreement", candidate=agreement, change=counted),
        Row(label="KL divergence", candidate=kl, change="per token, reading the same tokens"),
        Row(label="Logit distance", candidate=distance, change="of the reference's scores, RMS"),
    ]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


METRICS = (
    Metric(
        name="teacher_forced",
        group="tokens",
        result=TeacherForcing,
        optional=True,
        compute=_compute,
        rows=_rows,
        terms=(
            Term(
                name="Token agreement, KL divergence, logit distance",
                meaning="both language models read the tokens that the reference spoke and are "
                "asked at each step what comes next: how often they find the same token most "
                "probable, how far the compressed model's probabilities are from the reference's, "
                "and how far its scores are.",
            ),
        ),
    ),
)
