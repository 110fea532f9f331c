"""Distance of a compressed language model's answers from the original's, step by step.

Left to themselves two language models diverge at the first token that differs, and from there on
nothing compares. So both read the same tokens, those that the reference speaks with a seed
(teacher forcing), and are asked at each step for the next one. Positions count where the reference
chose a sound: not where a codebook has not begun, is over, or a token is forced.

Models of latents read the latents that the reference speaks, and are asked at each step whether
speech ends, and for the next latent, without noise. A head that ends speech too early or never
moves its log-odds at every step, so a few texts show what would otherwise be seen in one sentence
of hundreds.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.config import Config
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import text_interval
from tts_compress.evaluation.metric import Figure, Metric, Record, Row, T
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.stages import choose_texts
from tts_compress.evaluation.store import read_piece, read_tokens, short_hash, write_piece
from tts_compress.folders import make_directory
from tts_compress.models.base import LanguageModel, LatentModel, Reading

Scores: TypeAlias = npt.NDArray[np.float32]


class FilesOfText(NamedTuple):
    """Files with what both models answered to the tokens of a text, and with the tokens."""

    reference: Path
    candidate: Path
    tokens: Path
    free: Path
    """Tokens that the candidate speaks with the same noise, left to itself."""


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

    agreement_interval: tuple[float, float] | None = None
    """95 % interval over resampled texts; None of too few texts, and in older reports."""

    kl_interval: tuple[float, float] | None = None

    stop_shift: float | None = None
    """Mean change of the log-odds that speech ends, nats; above 0 it ends earlier. None where no
    token ends it."""

    stop_shift_interval: tuple[float, float] | None = None
    """95 % interval over resampled texts; None of too few."""

    steps_together: float | None = None
    """Median number of steps before the models part, left to themselves with the same noise, of
    texts in which they do; None where they never do."""


class Compared(Config, Generic[T]):
    """A finished comparison of two models that read alike, as a piece of the store."""

    reference: str
    """Fingerprint of the model that speaks."""

    candidate: str
    """Fingerprint of the model that only reads the other's tokens."""

    texts: tuple[str, ...]
    seed: int
    """Seed of the first text; each further one has the next."""

    scores: T


def _read_alike(
    run: Run,
    compared: type[Compared[T]],
    compare: Callable[[Iterator[FilesOfText]], T],
    *,
    freely: bool = False,
) -> T:
    """Return what comes of both models reading what the reference spoke; finished work is kept.

    The texts are up to `teacher_forced_texts` of the suite's, with its first seed. Each model runs
    in its own process, one after the other; tokens and scores, which are large, go to the disk
    until they are compared.

    Args:
        run: The evaluation.
        compared: The kind of piece that keeps the result.
        compare: Returns the result of the files of every text.
        freely: The candidate also speaks without being told what the reference said.
    """
    options, seed = run.options, run.suite.seeds[0]
    texts = choose_texts([item.text for item in run.suite.utterances], options.teacher_forced_texts)
    made_from: dict[str, Any] = {
        "reference": run.subjects[0].fingerprint,
        "candidate": run.subjects[1].fingerprint,
        "texts": tuple(texts),
        "seed": seed,
    }
    folder = run.store.root / "teacher-forced" / short_hash(json.dumps(made_from))
    piece = folder.with_suffix(".json")
    steps = 2 * len(texts)
    cached = read_piece(piece, compared, **made_from)
    if cached is None:
        make_directory(folder)
        endings = ("-reference.npy", "-candidate.npy", ".npz", "-free.npz")
        stems = [str(folder.absolute() / str(index)) for index in range(len(texts))]
        files = [FilesOfText(*(Path(stem + ending) for ending in endings)) for stem in stems]
        # The reference comes first, so its tokens are there when the candidate reads them.
        for number, model in enumerate(run.subjects):
            with ExitStack() as stack:
                worker: Worker | None = None
                for index, (text, paths) in enumerate(zip(texts, files, strict=True)):
                    options.progress.advance(_STAGE, number * len(texts) + index, steps)
                    scores, tokens, free = paths[number], paths.tokens, paths.free
                    said = (tokens, free) if freely and number else (tokens,)
                    if all(path.is_file() for path in (*said, scores)):
                        continue
                    worker = worker or stack.enter_context(model.start(options))
                    if not tokens.is_file():
                        worker.ask("say", text=text, seed=seed + index, path=tokens)
                    worker.ask("read", text=text, tokens=tokens, path=scores)
                    if free in said:
                        worker.ask("say", text=text, seed=seed + index, path=free)
        cached = compared(**made_from, scores=compare(iter(files)))
        write_piece(piece, cached)
        shutil.rmtree(folder, ignore_errors=True)
    options.progress.advance(_STAGE, steps, steps)
    return cached.scores


def _can_read(run: Run, kind: Any) -> bool:
    """Return True if both models are of a kind that reads, and texts to read are asked for."""
    is_kind = all(isinstance(subject.model, kind) for subject in run.subjects)
    return is_kind and run.options.teacher_forced_texts > 0


def _compare_files(texts: Iterator[FilesOfText]) -> TeacherForcing:
    steps: list[int | None] = []

    def read(text: FilesOfText) -> tuple[Any, ...]:
        tokens = read_tokens(text.tokens)
        steps.append(steps_together(tokens.ids, read_tokens(text.free).ids))
        return np.load(text.reference), np.load(text.candidate), tokens.chosen, tokens.stop

    scores = compare_scores(map(read, texts))
    parted = [count for count in steps if count is not None]
    together = float(np.median(parted)) if parted else None
    return scores.model_copy(update={"steps_together": together})


def steps_together(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> int | None:
    """Return the steps before two models' tokens differ, None where they never do.

    Args:
        first: Tokens, shape `[S + 1, K]`, the first row of which starts the speech.
        second: Those of the other model.
    """
    steps = min(len(first), len(second))
    differ = np.flatnonzero((first[:steps] != second[:steps]).any(axis=1))
    if len(differ):
        return int(differ[0]) - 1
    return None if len(first) == len(second) else steps - 1


def compare_scores(texts: Iterable[tuple[Any, ...]]) -> TeacherForcing:
    """Return the difference of two models' scores for the same tokens, over all texts' positions.

    Args:
        texts: For each text, the scores of reference and candidate, shape `[S, K, V]`, the mask of
            positions that count, shape `[S, K]`, and the token that ends speech, if one does.

    Raises:
        EvaluationError: The shapes differ, no position counts, or scores are not finite.
    """
    sums: list[tuple[float, int, int]] = []  # nats, agreements and positions of each text
    ends: list[tuple[float, int]] = []  # change of the log-odds that it ends, and steps
    squared_difference = squared_reference = 0.0
    for reference, candidate, chosen, *stop in texts:
        agreements = positions = 0
        nats = 0.0
        if reference.shape != candidate.shape or reference.shape[:2] != chosen.shape:
            raise EvaluationError(
                f"scores of shapes {reference.shape} and {candidate.shape} for tokens of shape "
                f"{chosen.shape} do not belong together; compare models of one architecture"
            )
        # One codebook at a time: in double precision all of them would be many times the scores.
        for book in range(chosen.shape[1]):
            where = chosen[:, book]
            first, second = (
                _centred(name, scores[where, book], book)
                for name, scores in (("reference", reference), ("candidate", candidate))
            )
            expected, guessed = _log_probabilities(first), _log_probabilities(second)
            nats += float(_divergence(expected, guessed).sum())
            agreements += int((first.argmax(axis=-1) == second.argmax(axis=-1)).sum())
            squared_difference += float(np.square(second - first).sum())
            squared_reference += float(np.square(first).sum())
            positions += len(first)
        sums.append((nats, agreements, positions))
        if any(token is not None for token in stop):
            odds = [_odds(scores[:, 0], stop[0]) for scores in (reference, candidate)]
            ends.append((float((odds[1] - odds[0]).sum()), len(reference)))
    by_text = np.array(sums).reshape(-1, 3)
    nats, agreements, positions = by_text.sum(axis=0).tolist()
    if not positions:
        raise EvaluationError("the reference chose no tokens to compare; give other texts")
    if squared_reference > 0:
        distance = (squared_difference / squared_reference) ** 0.5
    else:  # a reference that finds all tokens alike
        distance = float("inf") if squared_difference > 0 else 0.0
    spoken, shifts = by_text[by_text[:, 2] > 0], np.array(ends).reshape(-1, 2)
    return TeacherForcing(
        agreement=agreements / positions,
        kl_nats=nats / positions,
        logit_distance=distance,
        positions=int(positions),
        texts=len(sums),
        agreement_interval=text_interval(spoken[:, 1], spoken[:, 2]),
        kl_interval=text_interval(spoken[:, 0], spoken[:, 2]),
        stop_shift=float(shifts[:, 0].sum() / shifts[:, 1].sum()) if ends else None,
        stop_shift_interval=text_interval(shifts[:, 0], shifts[:, 1]) if ends else None,
    )


def _odds(scores: Scores, token: int) -> npt.NDArray[np.float64]:
    """Return the log-odds of a token against all others, of scores `[S, V]`."""
    nats = np.minimum(_log_probabilities(scores.astype(np.float64))[:, token], -1e-12)
    return np.asarray(nats - np.log(-np.expm1(nats)))


def _centred(name: str, scores: Scores, book: int) -> npt.NDArray[np.float64]:
    """Return scores, shape `[P, V]`, from the mean of each position."""
    if not np.isfinite(scores).all():
        raise EvaluationError(
            f"the {name}'s scores of codebook {book} are not finite; its weights are damaged or "
            "were compressed too far"
        )
    wide = scores.astype(np.float64)
    return np.asarray(wide - wide.mean(axis=-1, keepdims=True))


def _divergence(
    reference: npt.NDArray[np.float64], candidate: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the divergence of distributions, given as logarithms over the last axis, nats."""
    # Never below zero but for rounding.
    difference = (np.exp(reference) * (reference - candidate)).sum(axis=-1)
    return np.asarray(np.maximum(difference, 0))


def _log_probabilities(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    below = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=-1, keepdims=True)))


def compare_language_models(run: Run) -> TeacherForcing:
    """Return the difference of the candidate's scores from the reference's."""
    return _read_alike(run, Compared[TeacherForcing], _compare_files, freely=True)


def _rows(scores: TeacherForcing, _: object) -> list[Row]:
    texts = formatting.count(scores.texts, "text")
    counted = f"{formatting.count(scores.positions, 'token')}, {texts}"
    kl, agreement = formatting.nats(scores.kl_nats), formatting.percent(scores.agreement)
    distance = formatting.percent(scores.logit_distance)
    reading = "per token, reading the same tokens"
    if scores.kl_interval is not None:
        low, high = map(formatting.nats, scores.kl_interval)
        reading += f" (95 % interval {low} to {high})"
    rows = [
        Row(label="Token agreement", candidate=agreement, change=counted),
        Row(label="KL divergence", candidate=kl, change=reading),
        Row(label="Logit distance", candidate=distance, change="of the reference's scores, RMS"),
    ]
    if scores.stop_shift is not None:
        rows.append(_end_row(scores.stop_shift, scores.stop_shift_interval, texts))
    if scores.steps_together is not None:
        steps = f"after {scores.steps_together:g} steps"
        change = "median of texts that part, left to themselves with the same noise"
        rows.append(Row(label="Tokens part", candidate=steps, change=change))
    return rows


def _end_row(shift: float | None, interval: tuple[float, float] | None, reading: str) -> Row:
    """Return the line of a change of the log-odds that speech ends."""
    change = f"mean of {reading}"
    if interval is not None:
        low, high = map(_signed_nats, interval)
        change += f" (95 % interval {low} to {high})"
    return Row(label="Log-odds of the end", candidate=_signed_nats(shift), change=change)


def _signed_nats(value: float | None) -> str:
    """Return a change in nats, as in `+0.123 nats`."""
    return formatting.MISSING if value is None else f"{formatting.signed(value, 3)} nats"


Answers: TypeAlias = npt.NDArray[np.float32]
"""Log-odds of the end, the threshold above which speech ends, and the latent, `[S, 2 + D]`."""

_FIRST_LATENT = 2


class LatentForcing(Record):
    """Difference of the candidate's answers from the reference's, over all steps."""

    stop_shift: float
    """Mean change of the log-odds that speech ends, nats; above 0 it ends earlier."""

    stop_spread: float
    """Root mean square of the same."""

    agreement: float
    """Share of steps at which both decide alike whether speech ends, in [0, 1]."""

    kl_nats: float
    """Mean Kullback-Leibler divergence of the candidate's decision from the reference's."""

    latent_distance: float
    """RMS difference of the latents, relative to the RMS of the reference's; 0 is equal."""

    steps: int
    texts: int

    stop_shift_interval: tuple[float, float] | None = None
    """95 % interval over resampled texts; None of too few texts."""

    kl_interval: tuple[float, float] | None = None


def answer_columns(reading: Reading) -> Answers:
    """Return a reading as one array, which a file holds."""
    threshold = np.full_like(reading.stop, reading.threshold)
    return np.column_stack((reading.stop, threshold, reading.latents)).astype(np.float32)


def compare_answers(texts: Iterable[tuple[Answers, Answers]]) -> LatentForcing:
    """Return the difference of two models' answers to the same latents.

    Args:
        texts: For each text, the answers of reference and candidate.

    Raises:
        EvaluationError: The shapes differ, there are none, or answers are not finite.
    """
    rows: list[list[float]] = []
    for before, after in texts:
        if before.shape != after.shape or not len(before):
            raise EvaluationError(
                f"answers of shapes {before.shape} and {after.shape} do not belong together; "
                "compare models of one architecture"
            )
        for role, values in (("reference", before), ("candidate", after)):
            if not np.isfinite(values).all():
                raise EvaluationError(
                    f"the {role}'s answers are not finite; its weights are damaged or were "
                    "compressed too far"
                )
        rows.append(_sums(before.astype(np.float64), after.astype(np.float64)))
    if not rows:
        raise EvaluationError("there are no texts to read; give some")
    sums = np.array(rows)
    steps, shift, squares, alike, nats, moved, power = sums.T
    total = steps.sum()
    return LatentForcing(
        stop_shift=float(shift.sum() / total),
        stop_spread=float((squares.sum() / total) ** 0.5),
        agreement=float(alike.sum() / total),
        kl_nats=float(nats.sum() / total),
        latent_distance=float((moved.sum() / max(power.sum(), np.finfo(float).tiny)) ** 0.5),
        steps=int(total),
        texts=len(rows),
        stop_shift_interval=text_interval(shift, steps),
        kl_interval=text_interval(nats, steps),
    )


def _sums(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> list[float]:
    """Return steps, shift, its square, agreements, nats, and powers of difference and latents."""
    change = after[:, 0] - before[:, 0]
    ends = [answers[:, 0] > answers[:, 1] for answers in (before, after)]
    decisions = (-np.logaddexp(0, np.outer(answers[:, 0], (-1, 1))) for answers in (before, after))
    moved = after[:, _FIRST_LATENT:] - before[:, _FIRST_LATENT:]
    return [
        float(len(before)),
        float(change.sum()),
        float(np.square(change).sum()),
        float((ends[0] == ends[1]).sum()),
        float(_divergence(*decisions).sum()),
        float(np.square(moved).sum()),
        float(np.square(before[:, _FIRST_LATENT:]).sum()),
    ]


def _compute_latents(run: Run) -> LatentForcing | None:
    if not _can_read(run, LatentModel):
        return None
    return _read_alike(
        run,
        Compared[LatentForcing],
        lambda texts: compare_answers((np.load(t.reference), np.load(t.candidate)) for t in texts),
    )


def _latent_rows(answers: LatentForcing, _: object) -> list[Row]:
    reading = f"{answers.steps} steps, {answers.texts} texts"
    agreement, distance = map(formatting.percent, (answers.agreement, answers.latent_distance))
    return [
        _end_row(answers.stop_shift, answers.stop_shift_interval, reading),
        Row(label="Decisions on the end", candidate=agreement, change="alike"),
        Row(
            label="KL divergence of the end",
            candidate=formatting.nats(answers.kl_nats),
            change="per step, reading the same latents",
        ),
        Row(label="Latent distance", candidate=distance, change="of the reference's latents, RMS"),
    ]


METRICS = (
    Metric(
        name="latent_forced",
        group="tokens",
        result=LatentForcing,
        optional=True,
        compute=_compute_latents,
        rows=_latent_rows,
        figures={
            "stop_shift_interval": Figure("log-odds that speech ends", _signed_nats),
            "kl_interval": Figure("KL divergence of the end per step", formatting.nats),
        },
        terms={
            "Log-odds of the end, decisions on the end, latent distance": "both models read the "
            "latents that the reference spoke and are asked at each step whether speech ends, and "
            "for the next latent without noise.",
        },
    ),
    Metric(
        name="teacher_forced",
        group="tokens",
        result=TeacherForcing,
        optional=True,
        compute=lambda run: compare_language_models(run) if _can_read(run, LanguageModel) else None,
        rows=_rows,
        figures={
            "agreement_interval": Figure("token agreement", formatting.percent),
            "kl_interval": Figure("KL divergence per token", formatting.nats),
            "stop_shift_interval": Figure("log-odds that speech ends", _signed_nats),
        },
        terms={
            "Token agreement, KL divergence, logit distance": "both language models read the "
            "tokens that the reference spoke and are asked at each step what comes next: how often "
            "they find the same token most probable, how far the compressed model's probabilities "
            "are from the reference's, and how far its scores are. Left to themselves "
            "with the same noise, tokens part at the first that differs.",
        },
    ),
)
