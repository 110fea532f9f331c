"""What the numbers mean, in sentences; comparisons are made on the raw values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from tts_compress.models.base import UNLIKE_UPSTREAM
from tts_compress.report import wording
from tts_compress.report.speed import speed_of

if TYPE_CHECKING:
    from tts_compress.report.evaluation import ErrorRate, Evaluation, Health
    from tts_compress.report.speed import Speed

__all__ = [
    "MISHEARD_AT_MOST",
    "Trend",
    "broken",
    "broken_in_words",
    "cautions",
    "distance_judgement",
    "rate_judgement",
    "rate_trend",
    "ratio_trend",
    "speed_trend",
    "verdict",
]

Trend: TypeAlias = Literal["better", "worse", "same", "unknown"]

MISHEARD_AT_MOST = 0.5
"""Word error rate of a reference that is understood. Above it more is misheard than heard:
insertions and guesses dominate, and a difference says nothing."""


def rate_trend(rate: ErrorRate) -> Trend:
    """Return the direction of an error rate: a change only where its interval excludes zero."""
    low, high = rate.interval
    if not all(wording.is_finite(value) for value in (rate.delta, low, high)):
        return "unknown"
    if low > 0:
        return "worse"
    return "better" if high < 0 else "same"


def ratio_trend(ratio: float | None) -> Trend:
    """Return the direction of a cost ratio reference/candidate: above 1 is better."""
    if not wording.is_finite(ratio):
        return "unknown"
    if ratio > 1:
        return "better"
    return "worse" if ratio < 1 else "same"


def speed_trend(speed: Speed) -> Trend:
    """Return the direction of a speed: where its interval is known, only if it excludes 1."""
    interval = speed.interval or (math.nan, math.nan)
    if not all(wording.is_finite(value) for value in (speed.ratio, *interval)):
        return ratio_trend(speed.ratio)
    low, high = interval
    if low > 1:
        return "better"
    return "worse" if high < 1 else "same"


def rate_judgement(rate: ErrorRate) -> str:
    """Return what the interval of an error-rate difference allows one to say."""
    return {
        "same": "no difference that this suite can show",
        "worse": "a real loss: the whole interval is above zero",
        "better": "a real gain: the whole interval is below zero",
        "unknown": "not measured",
    }[rate_trend(rate)]


def distance_judgement(evaluation: Evaluation) -> str:
    """Return how the distance to the reference compares with that between two of its seeds."""
    distance = evaluation.signal.log_mel_distance_db
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    if not (wording.is_finite(distance) and wording.is_finite(floor)):
        return "not measured"
    if distance < floor:
        return "closer than the reference is to itself with another seed"
    return "as far as, or farther than, the reference is from itself with another seed"


def broken(health: Health) -> int:
    """Return the number of defects: an utterance that is silent and clipped counts twice."""
    return health.silent + health.clipped + health.not_finite + health.empty


def broken_in_words(health: Health) -> str:
    """Return the defects by kind, such as `2 silent, 1 clipped`, or `none`."""
    kinds = (
        (health.silent, "silent"),
        (health.clipped, "clipped"),
        (health.not_finite, "not finite"),
        (health.empty, "empty"),
    )
    return ", ".join(f"{count} {kind}" for count, kind in kinds if count) or "none"


def verdict(evaluation: Evaluation) -> str:
    """Return the whole comparison as one sentence; two where utterances are broken."""
    cost = _cost(evaluation)
    if broken(evaluation.health.candidate):
        defects = broken_in_words(evaluation.health.candidate)
        return (
            f"The compressed model is not fit for use: it has broken utterances ({defects}). "
            f"It is {cost}."
        )
    wer = evaluation.wer
    return (
        f"The compressed model is {cost}; its word error rate changed by "
        f"{wording.points(wer.delta)} (95 % interval {wording.interval(wer.interval)}): "
        f"{rate_judgement(wer)}."
    )


def cautions(evaluation: Evaluation) -> tuple[str, ...]:
    """Return what a reader must know before trusting the numbers; often nothing."""
    found = []
    for name, health in (
        ("compressed model", evaluation.health.candidate),
        ("reference", evaluation.health.reference),
    ):
        if broken(health):
            found.append(f"Broken utterances of the {name}: {broken_in_words(health)}.")
    found.extend(f"{warning[0].upper()}{warning[1:]}." for warning in evaluation.warnings)
    found.extend(_cautions_about_settings(evaluation))
    found.extend(_cautions_about_words(evaluation))
    if speed_trend(speed_of(evaluation.latency)) == "worse":
        found.append("The compressed model is slower than the reference on this machine.")
    if evaluation.size.ratio < 1:
        found.append("The compressed model is larger than the reference.")
    return tuple(found)


def _cautions_about_settings(evaluation: Evaluation) -> list[str]:
    before, after = evaluation.reference.settings, evaluation.candidate.settings
    found = []
    if UNLIKE_UPSTREAM in before:
        found.append(f"Models are run {UNLIKE_UPSTREAM}: {before[UNLIKE_UPSTREAM]}.")
    found.extend(
        f"The models are not run alike: {name} of the reference is '{value}', of the compressed "
        f"model '{after[name]}'."
        for name, value in before.items()
        # One recording has many names.
        if name != "recording" and after.get(name, value) != value
    )
    return found


def _cautions_about_words(evaluation: Evaluation) -> list[str]:
    wer, listener = evaluation.wer, evaluation.floors.recognizer
    found = []
    if wer.reference > MISHEARD_AT_MOST:
        found.append(
            f"The recognizer mishears {wording.percent(wer.reference)} of the reference's words; "
            "behind that, a difference between the models is hard to see."
        )
    if wer.delta != 0 and abs(wer.delta) <= abs(listener.delta):
        found.append(
            "An inaudible change to the reference's own audio moves the word error rate by "
            f"{wording.points(listener.delta)}, no less than compression did."
        )
    return found


def _cost(evaluation: Evaluation) -> str:
    size = wording.times(evaluation.size.ratio, "smaller", "larger")
    known = {"no change": "of unchanged size", wording.MISSING: "of unknown size"}
    return f"{known.get(size, size)} and {_speed(speed_of(evaluation.latency))}"


def _speed(speed: Speed) -> str:
    if speed.interval_words and speed_trend(speed) == "same":
        return f"as fast, as far as these runs can show ({speed.words}, {speed.interval_words})"
    known = {"no change": "of unchanged speed", wording.MISSING: "of unknown speed"}
    return known.get(speed.words, speed.change)
