"""Distance of a compressed model's answers from the original's, latent by latent.

Both read the latents that the reference speaks with a seed, as language models of tokens read its
tokens (`teacher_forcing`), and are asked at each step whether speech ends, and for the next latent,
without noise. A head that ends speech too early or never moves its log-odds at every step, so a few
texts show what would otherwise be seen in one sentence of hundreds.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.errors import EvaluationError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import text_interval
from tts_compress.evaluation.metric import Figure, Metric, Record, Row
from tts_compress.evaluation.metrics.teacher_forcing import (
    Compared,
    FilesOfText,
    can_read,
    end_row,
    read_alike,
    signed_nats,
)
from tts_compress.evaluation.pairs import Run
from tts_compress.models.base import LatentModel, Reading

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
    moved = after[:, _FIRST_LATENT:] - before[:, _FIRST_LATENT:]
    return [
        float(len(before)),
        float(change.sum()),
        float(np.square(change).sum()),
        float((ends[0] == ends[1]).sum()),
        float(_divergence(before[:, 0], after[:, 0]).sum()),
        float(np.square(moved).sum()),
        float(np.square(before[:, _FIRST_LATENT:]).sum()),
    ]


def _divergence(
    reference: npt.NDArray[np.float64], candidate: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the divergence of decisions with log-odds, nats."""
    ends, goes_on = -np.logaddexp(0, -reference), -np.logaddexp(0, reference)
    difference = np.exp(ends) * (ends + np.logaddexp(0, -candidate))
    difference += np.exp(goes_on) * (goes_on + np.logaddexp(0, candidate))
    return np.asarray(np.maximum(difference, 0))


def _compare_files(texts: Iterator[FilesOfText]) -> LatentForcing:
    return compare_answers((np.load(text.reference), np.load(text.candidate)) for text in texts)


def _compute(run: Run) -> LatentForcing | None:
    if not can_read(run, LatentModel):
        return None
    return read_alike(run, Compared[LatentForcing], _compare_files)


def _rows(answers: LatentForcing, _: object) -> list[Row]:
    reading = f"{answers.steps} steps, {answers.texts} texts"
    agreement, distance = map(formatting.percent, (answers.agreement, answers.latent_distance))
    return [
        end_row(answers.stop_shift, answers.stop_shift_interval, reading),
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
        compute=_compute,
        rows=_rows,
        figures={
            "stop_shift_interval": Figure("log-odds that speech ends", signed_nats),
            "kl_interval": Figure("KL divergence of the end per step", formatting.nats),
        },
        terms={
            "Log-odds of the end, decisions on the end, latent distance": "both models read the "
            "latents that the reference spoke and are asked at each step whether speech ends, and "
            "for the next latent without noise.",
        },
    ),
)
