"""The words for the outcome of a search: what was shown, and what was not."""

from tts_compress.evaluation import formatting
from tts_compress.search.cost import UNITS, Objective
from tts_compress.search.outcome import Judged, SearchResult

_SHOWN = {
    "kept": "the whole interval is within the bound",
    "not excluded": "the rise is within the bound, its interval is not",
    "broken": "beyond the bound",
}


_NARROW = (
    " This suite cannot show a bound so narrow: the damage on the short texts, not the words, "
    "decides between candidates."
)


def find_statement(found: SearchResult) -> str:
    """Return the outcome in a few sentences."""
    chosen = next((one for one in candidates(found) if one.name == found.chosen), None)
    if chosen is None:
        tried = len(found.judged) + 1
        return (
            f"No format meets the bound of {_points(found.bound)} points"
            f"{' by its whole interval' if found.strict else ''}: {tried} voices were judged, "
            f"scheme int8 among them ({_rise(found.baseline)}). Allow a larger rise, or less "
            "damage (--damage), or take a suite of more texts."
        )
    baseline = found.baseline
    if chosen.name == baseline.name:
        others = (
            f"and {len(found.judged)} judged ones none that keeps the words is better"
            if found.judged
            else "none that does no more damage costs less"
        )
        return (
            f"Scheme int8 is the best that was found: of {len(found.points)} measured choices "
            f"{others} ({show_cost(found, baseline.cost)}; {_rise(baseline)}; "
            f"{_SHOWN[baseline.words]}).{_doubt(baseline)}"
        )
    return (
        f"Candidate {chosen.name}: {show_cost(found, chosen.cost)}, where scheme int8 has "
        f"{show_cost(found, baseline.cost)}. Its {_rise(chosen)}: {_SHOWN[chosen.words]}; scheme "
        f"int8's by the same judge: {_rise(baseline)}, {_SHOWN[baseline.words]}.{_doubt(chosen)}"
    )


def _doubt(one: Judged) -> str:
    return _NARROW if one.words == "not excluded" else ""


def candidates(found: SearchResult) -> list[Judged]:
    """Return the voices that were judged, scheme `int8` first."""
    return [found.baseline, *found.judged]


def show_cost(found: SearchResult, cost: float) -> str:
    """Return a cost in the words of the objective."""
    if found.unit == UNITS[Objective.LATENCY]:
        return f"{cost:.3f} of FP32's time"
    return f"{cost / 1e6:.2f} MB"


def _rise(one: Judged) -> str:
    interval = formatting.interval(one.wer_interval, scale=1.0, digits=2)
    return f"word error rate {_points(one.wer_rise)} points (95 % interval {interval})"


def _points(value: float) -> str:
    return formatting.signed(value, 2)
