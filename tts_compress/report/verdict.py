"""The comparison in sentences; decisions are made on the raw values."""

from tts_compress.evaluation import formatting
from tts_compress.evaluation.metrics.cost import Speed
from tts_compress.evaluation.metrics.error_rates import MISHEARD_AT_MOST, rate_judgement
from tts_compress.evaluation.metrics.health import broken, broken_in_words
from tts_compress.evaluation.result import Evaluation
from tts_compress.models.base import UNLIKE_UPSTREAM


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
        f"{formatting.points(wer.delta)} (95 % interval {formatting.interval(wer.interval)}): "
        f"{rate_judgement(wer)}."
    )


def cautions(evaluation: Evaluation) -> tuple[str, ...]:
    """Return warnings to read before trusting the numbers; often none."""
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
    if Speed(evaluation.latency).trend == "worse":
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
    wer, recognizer = evaluation.wer, evaluation.floors.recognizer
    found = []
    if wer.reference > MISHEARD_AT_MOST:
        found.append(
            f"The recognizer mishears {formatting.percent(wer.reference)} of the reference's "
            "words; behind that, a difference between the models is hard to see."
        )
    if wer.delta != 0 and abs(wer.delta) <= abs(recognizer.delta):
        found.append(
            "An inaudible change to the reference's own audio moves the word error rate by "
            f"{formatting.points(recognizer.delta)}, no less than compression did."
        )
    return found


def _cost(evaluation: Evaluation) -> str:
    size = formatting.times(evaluation.size.ratio, "smaller", "larger")
    known = {"no change": "of unchanged size", formatting.MISSING: "of unknown size"}
    speed = Speed(evaluation.latency)
    if speed.interval and speed.trend == "same":
        words = f"as fast, as far as these runs can show ({speed.words}, {speed.interval})"
    else:
        speeds = {"no change": "of unchanged speed", formatting.MISSING: "of unknown speed"}
        words = speeds.get(speed.words, speed.change)
    return f"{known.get(size, size)} and {words}"
