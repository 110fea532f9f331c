"""The document of a search."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import MissingExtraError
from tts_compress.evaluation.metric import Record
from tts_compress.search.damage import Damage

SEARCH_NAME = "search.json"

Words = Literal["kept", "not excluded", "broken"]
"""Judgement of a bound on the word error rate: the whole interval is within it, only its middle is,
or not even that."""


class Point(Record):
    """A choice that was measured on the short texts."""

    choice: dict[str, str]
    """The format of each group."""

    cost: float
    damage: Damage


class Judged(Record):
    """A compressed voice with the verdict on its words."""

    name: str
    """`int8`, the scheme, or the number of a candidate, the cheapest first."""

    choice: dict[str, str] | None
    """None for the scheme."""

    cost: float
    size_bytes: int
    damage: Damage
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


class SearchResult(Record):
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
    limits: Damage
    """The largest damage that the cheap judge admitted, on the short texts."""

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

    def to_json(self) -> str:
        """Return the document."""
        return self.model_dump_json(indent=2) + "\n"


def judge_words(rise: float, interval: Sequence[float] | None, bound: float) -> Words:
    """Return what an evaluation says of a bound; all in percentage points."""
    if rise > bound:
        return "broken"
    return "kept" if interval and interval[1] <= bound else "not excluded"


def find_front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other is better than, the cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost, one.damage.log_mel_db)):
        if not front or point.damage.log_mel_db < front[-1].damage.log_mel_db:
            front.append(point)
    return front


def admits(limits: Damage, damage: Damage) -> bool:
    """Return True if a damage is within limits."""
    heard = damage.log_mel_db <= limits.log_mel_db
    if limits.distortion is not None and damage.distortion is not None:
        heard = heard and damage.distortion <= limits.distortion
    return heard and damage.duration_frames <= limits.duration_frames


def write_search(found: SearchResult, folder: Path) -> Path:
    """Write `search.json` and `search.html`; return the page.

    Raises:
        MissingExtraError: The page needs jinja2 and matplotlib; the document is written.
        ArtifactError: The folder cannot be written.
    """
    write_text_atomically(folder / SEARCH_NAME, found.to_json())
    try:
        from tts_compress.search.page import search_page
    except ImportError as error:
        raise MissingExtraError(error.name or "jinja2", "evaluate") from error
    page = folder / "search.html"
    write_text_atomically(page, search_page(found))
    return page
