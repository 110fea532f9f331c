"""A blind listening test: its page, what listeners answered, and what that shows.

ABX (Clark, "High-resolution subjective testing using a double-blind comparator", JAES 30(5), 1982):
A and B are the voices in random order, X is one of them, and the listener says which. Who hears
nothing guesses, and is right in half of the trials.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from pydantic import Field, ValidationError

from tts_compress.config import describe_problems
from tts_compress.errors import EvaluationError, raising
from tts_compress.evaluation.intervals import exact_interval, special
from tts_compress.evaluation.metric import Document, Record
from tts_compress.plain import one_line
from tts_compress.reading import read_json

_FALSE_ALARMS = 0.05
"""Chance to find a difference where everybody guesses."""

POWER = 0.8
"""Chance to find the difference that is told as detectable."""

_MOST_BYTES = 1 << 20
_Letter: TypeAlias = Literal["a", "b"]


class AbxPair(Record):
    """Two sounds of one text and seed."""

    index: int = Field(ge=0)
    seed: int
    catch: bool
    """The second sound is a damaged copy that every listener hears, not the candidate."""


class SoundPair(AbxPair):
    """A pair with its audio."""

    sounds: tuple[str, str]
    """The reference and the other sound, as FLAC in base64."""


class ListeningTest(Document):
    """All that the page of a test needs."""

    test: str
    """Hash of the models, the suite, and the samples of the pairs."""

    identical: int
    """Pairs that were left out because both sounds are the same."""

    pairs: tuple[SoundPair, ...]


class AbxTrial(AbxPair):
    """A pair as a listener heard it."""

    reference: _Letter
    x: _Letter
    answer: _Letter
    plays: dict[Literal["a", "b", "x"], int]
    """Times that each was played."""

    seconds: float = Field(ge=0, allow_inf_nan=False)


class ListenerScore(Record):
    """The answers of one listener, counted."""

    name: str
    right: int
    trials: int
    is_reliable: bool
    """True if all catch trials were right; who guesses four of them has a chance of 6 %."""


class ListenerAnswers(Record):
    """The file that the page saves."""

    format_version: Literal[1]
    test: str = Field(max_length=64)
    identical: int
    listener: str = Field(max_length=60)
    """Name or initials; may be empty."""

    session: int
    """Seed of the order, drawn by the browser."""

    trials: tuple[AbxTrial, ...] = Field(min_length=1, max_length=500)

    def pairs(self) -> list[tuple[int, int, bool]]:
        """Return what was heard, whatever the order."""
        return sorted((trial.index, trial.seed, trial.catch) for trial in self.trials)

    def score(self) -> ListenerScore:
        """Return the number of right answers."""
        asked = [trial.x == trial.answer for trial in self.trials if not trial.catch]
        return ListenerScore(
            name=self.listener.strip() or f"nameless {self.session}",
            right=sum(asked),
            trials=len(asked),
            is_reliable=all(trial.x == trial.answer for trial in self.trials if trial.catch),
        )


class ListeningOutcome(Record):
    """The answers of the reliable listeners together."""

    test: str
    identical: int
    listeners: tuple[ListenerScore, ...]
    right: int
    trials: int
    interval: tuple[float, float]
    """95 % interval of the share of right answers, for listeners like these."""

    p_value: float
    """Chance of so many right answers or more where everybody guesses."""

    discriminated: float
    """Share of trials in which the difference is heard, as in the others half is guessed."""

    detectable: float | None
    """The least such share that is found with 80 % power; None if none is, of so few trials."""

    def __str__(self) -> str:
        """Return what was heard, or would have been, in a sentence."""
        low, high = (f"{100 * end:.0f}" for end in self.interval)
        counts = f"{self.right} of {self.trials} right ({low} to {high} %; 50 % by guessing)"
        if self.p_value <= _FALSE_ALARMS:
            share = f"it is heard in {100 * self.discriminated:.0f} % of trials"
            return f"a difference is heard: {counts}, p = {self.p_value:.2g}; {share}"
        if self.detectable is None:
            return f"nothing is shown: {counts}; so few trials find no difference"
        return (
            f"no difference heard: {counts}; one that is heard in {100 * self.detectable:.0f} % of "
            f"trials would have been found with {100 * POWER:.0f} % probability"
        )


def read_answers(path: Path) -> ListenerAnswers:
    """Return what a listener saved.

    Raises:
        EvaluationError: The file cannot be read, or is no such file.
    """
    with raising(EvaluationError, f"cannot read '{path}'"):
        content = read_json(path, _MOST_BYTES)
    try:
        return ListenerAnswers.model_validate(content)
    except ValidationError as error:
        problems = one_line(describe_problems(error), 300)
        raise EvaluationError(f"'{path}' is not saved by a listening test: {problems}") from error


def join_listeners(paths: Sequence[Path]) -> ListeningOutcome:
    """Return what the listeners of a test heard together.

    Raises:
        EvaluationError: A file is wrong, of another test or of the same listener as another one;
            or no listener heard the damaged copies.
    """
    files = [read_answers(path) for path in paths]
    seen: dict[str, Path] = {}
    for path, answers in zip(paths, files, strict=True):
        if answers.test != files[0].test or answers.pairs() != files[0].pairs():
            raise EvaluationError(
                f"'{path}' is of another listening test than '{paths[0]}' ({answers.test!r}, "
                f"{files[0].test!r}, or other pairs); give files of one test"
            )
        for mark in {f"session {answers.session}", answers.listener.strip().casefold()} - {""}:
            if mark in seen:
                raise EvaluationError(
                    f"'{seen[mark]}' and '{path}' are of the same listener; give one of them"
                )
            seen[mark] = path
    scores = tuple(answers.score() for answers in files)
    counts = [(score.right, score.trials) for score in scores if score.is_reliable]
    right, trials = (sum(count[column] for count in counts) for column in (0, 1))
    if not trials:
        raise EvaluationError("no answers count: no listener heard each damaged copy; ask others")
    return ListeningOutcome(
        test=files[0].test,
        identical=files[0].identical,
        listeners=scores,
        right=right,
        trials=trials,
        interval=share_interval(counts),
        p_value=chance(right, trials),
        discriminated=max(0.0, 2 * right / trials - 1),
        detectable=detectable_share(trials),
    )


def chance(right: int, trials: int) -> float:
    """Return the chance of at least so many right answers where all are guesses; binomial."""
    return float(special().betainc(right, trials - right + 1, 0.5)) if right else 1.0


def detectable_share(trials: int) -> float | None:
    """Return the least share of heard differences that is found with 80 % power, or None.

    Who hears the difference in a share `d` of trials is right in `(1 + d) / 2` of them.
    """
    needed = next((n for n in range(1, trials + 1) if chance(n, trials) <= _FALSE_ALARMS), None)
    if needed is None:
        return None
    return 2 * float(special().betaincinv(needed, trials - needed + 1, POWER)) - 1


def share_interval(counts: Iterable[tuple[int, int]]) -> tuple[float, float]:
    """Return the 95 % interval of the share of right answers.

    Listeners differ: the trials of several count as so many independent ones as have the variance
    between listeners (Korn and Graubard, as in `intervals`), and no more than there are.

    Args:
        counts: Right answers and trials of each listener.
    """
    right, trials = np.array(list(counts), float).T
    listeners, total = len(trials), trials.sum()
    share, size = right.sum() / total, total
    spread = np.square(right - share * trials).sum() * listeners / max(listeners - 1, 1)
    if listeners > 1 and spread > 0:
        many, few = special().stdtrit((total - 1, listeners - 1), 0.975)
        size = min(total, share * (1 - share) * total**2 / spread * (many / few) ** 2)
    return exact_interval(share * size, (1 - share) * size)
