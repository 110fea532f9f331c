"""The documents of a sensitivity analysis and of a search, and the words for their outcome."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from tts_compress.artifact import write_text_atomically
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Document, Record
from tts_compress.report import write_document
from tts_compress.search.measure import Damage, MeasuredDamage

Words = Literal["kept", "not excluded", "broken"]
"""Judgement of a bound on the word error rate: the whole interval is within it, only its middle is,
or not even that."""

_SHOWN = {
    "kept": "the whole interval is within the bound",
    "not excluded": "the rise is within the bound, its interval is not",
    "broken": "beyond the bound",
}

_NARROW = (
    " This suite cannot show a bound so narrow: the damage on the short texts, not the words, "
    "decides between candidates."
)


class Row(Record):
    """One group of layers alone in one format, all others in FP32."""

    group: str
    component: str
    patterns: tuple[str, ...]
    """Patterns on module names by which a recipe's rules match it."""

    format: str
    parameters: int
    """Weights whose format changes."""

    estimate: Damage
    """The damage that second moments predict."""

    measured: MeasuredDamage | None
    """None where the estimate is negligible."""

    saved_bytes: int
    saved_ms: float
    """Time that its kernels take less of than in FP32, over all texts, where every layer has this
    format; below zero they take longer. Profiled, one thread: a few per cent are noise."""

    @property
    def damage(self) -> Damage:
        """The measured damage, or else the estimate."""
        return self.measured or self.estimate


class Prediction(Record):
    """Rank correlation of estimated and measured damage, over groups and formats."""

    sound: float | None
    """Spearman's rank correlation; None from fewer than three values."""

    durations: float | None


class Sensitivity(Document):
    """Damage, bytes and time of each group of layers in each format."""

    model: str
    sha256: str
    """Hash of the graph."""

    formats: tuple[str, ...]
    texts: tuple[str, ...]
    seed: int
    environment: dict[str, Any]
    reference_bytes: int
    reference_ms: float
    """Time of all kernels in FP32 over all texts."""

    prediction: Prediction
    rows: tuple[Row, ...]
    """The most audible first, within that those that move durations most."""


class Point(Record):
    """A choice that was measured on the short texts."""

    choice: dict[str, str]
    """The format of each group."""

    cost: float
    damage: MeasuredDamage


class Judged(Record):
    """A compressed voice with the verdict on its words."""

    name: str
    """`int8`, the scheme, or the number of a candidate, the cheapest first."""

    choice: dict[str, str] | None
    """None for the scheme."""

    cost: float
    size_bytes: int
    damage: MeasuredDamage
    wer_rise: float
    """Candidate minus reference, percentage points."""

    wer_interval: tuple[float, float] | None
    """Its 95 % interval; None where the suite has too few texts for one."""

    distortion: float | None
    """On the suite's texts; 1 is what mu-law adds."""

    speed: float
    """Reference's latency over the candidate's in the evaluation."""

    words: Words
    report: str
    """Folder of its evaluation below the search's."""


class SearchResult(Document):
    """Everything that a search found."""

    model: str
    objective: str
    unit: str
    bound: float
    """Percentage points of the word error rate."""

    strict: bool
    """True if the whole interval had to be within the bound."""

    suite: str
    recognizer: str
    admitted: float
    """The largest distortion that was admitted on the short texts."""

    trials: int
    points: tuple[Point, ...]
    front: tuple[Point, ...]
    """Points that no other one is better than in cost and damage, the cheapest first."""

    baseline: Judged
    """Scheme `int8`, by the same judges."""

    judged: tuple[Judged, ...]
    chosen: str | None
    """Name of a judged one; None where none is within the bound."""

    statement: str
    """A sentence that says which rise was shown, and which was not."""

    environment: dict[str, Any]


def judge_words(rise: float, interval: Sequence[float] | None, bound: float) -> Words:
    """Return what an evaluation says of a bound; all in percentage points."""
    if rise > bound:
        return "broken"
    return "kept" if interval and interval[1] <= bound else "not excluded"


def find_front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other is better than, the cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.damage.distortion)):
        if not front or point.damage.distortion < front[-1].damage.distortion:
            front.append(point)
    return front


def find_statement(result: SearchResult) -> str:
    """Return the outcome in a few sentences."""
    chosen = next((voice for voice in candidates(result) if voice.name == result.chosen), None)
    if chosen is None:
        tried = len(result.judged) + 1
        return (
            f"No format meets the bound of {_points(result.bound)} points"
            f"{' by its whole interval' if result.strict else ''}: {tried} voices were judged, "
            f"scheme int8 among them ({_rise(result.baseline)}). Allow a larger rise, or less "
            "damage (--damage), or take a suite of more texts."
        )
    baseline = result.baseline
    if chosen.name == baseline.name:
        others = (
            f"and {len(result.judged)} judged ones none that keeps the words is better"
            if result.judged
            else "none that does no more damage costs less"
        )
        return (
            f"Scheme int8 is the best that was found: of {len(result.points)} measured choices "
            f"{others} ({show_cost(result, baseline.cost)}; {_rise(baseline)}; "
            f"{_SHOWN[baseline.words]}).{_doubt(baseline)}"
        )
    return (
        f"Candidate {chosen.name}: {show_cost(result, chosen.cost)}, where scheme int8 has "
        f"{show_cost(result, baseline.cost)}. Its {_rise(chosen)}: {_SHOWN[chosen.words]}; scheme "
        f"int8's by the same judge: {_rise(baseline)}, {_SHOWN[baseline.words]}.{_doubt(chosen)}"
    )


def _doubt(voice: Judged) -> str:
    return _NARROW if voice.words == "not excluded" else ""


def candidates(result: SearchResult) -> list[Judged]:
    """Return the voices that were judged, scheme `int8` first."""
    return [result.baseline, *result.judged]


def is_share(unit: str) -> bool:
    """Return True for costs that are shares of FP32's, not bytes."""
    return unit.startswith("share of ")


def show_cost(result: SearchResult, cost: float) -> str:
    """Return a cost in the words of the objective."""
    if is_share(result.unit):
        return f"{cost:.3f} {result.unit.removeprefix('share ')}"
    return f"{cost / 1e6:.2f} MB"


def _rise(voice: Judged) -> str:
    interval = formatting.interval(voice.wer_interval, scale=1.0, digits=2)
    return f"word error rate {_points(voice.wer_rise)} points (95 % interval {interval})"


def _points(value: float) -> str:
    return formatting.signed(value, 2)


def write_result(result: Sensitivity | SearchResult, folder: Path) -> Path:
    """Write `sensitivity` or `search`, as `.json` and `.html`; return the page."""
    stem = "search" if isinstance(result, SearchResult) else "sensitivity"
    write_document(
        result,
        (f"{stem}.html", f"tts_compress.search.page:{stem}_page"),
        {f"{stem}.json": result.to_json()},
        lambda name, text: write_text_atomically(folder / name, text),
    )
    return folder / f"{stem}.html"
