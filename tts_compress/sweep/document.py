"""The document of a sweep: its records, and the same as a table."""

import csv
import io
from typing import Any, Literal

from tts_compress.evaluation.metric import Document, Record
from tts_compress.sweep.units import Failure


class Entry(Record):
    """One voice by one scheme."""

    voice: str
    scheme: str
    report: str
    """Path of the page, from the sweep's folder on."""

    reference_bytes: int
    candidate_bytes: int
    size_ratio: float
    speed: float
    """Latency of the reference as a multiple of the candidate's."""

    speed_interval: tuple[float, float] | None
    peak_bytes: int
    wer_reference: float
    wer_candidate: float
    wer_delta: float
    wer_interval: tuple[float, float] | None
    distortion: float | None
    """Change of the distortion as a share of what telephone coding adds; None if not measured."""

    dnsmos_reference: float | None
    dnsmos_candidate: float | None
    gates: dict[str, bool]
    """True for those that passed, by name."""


class SweepReport(Document):
    """The document."""

    format_version: Literal[1] = 1
    suite: str
    suite_sha256: str
    recognizer: str
    voices: tuple[str, ...]
    """Specs."""

    schemes: tuple[str, ...]
    units: int
    """Number of all units."""

    left: int
    """Units that are not done yet, and that nothing is known to prevent."""

    entries: tuple[Entry, ...]
    failures: tuple[Failure, ...]

    @property
    def is_complete(self) -> bool:
        """True if every pair has its report."""
        return not (self.failures or self.left)

    @property
    def passed(self) -> bool:
        """True if every pair that has a report passed every gate."""
        return all(all(entry.gates.values()) for entry in self.entries)


def table_of(found: SweepReport) -> str:
    """Return the entries as CSV: a column for each number, rates as shares."""
    rows = [_flat(entry) for entry in found.entries]
    text = io.StringIO()
    # The same columns in every sweep, also in one without entries.
    names = [name for name in Entry.model_fields if name not in {"gates"}]
    columns = [column for name in names for column in _columns(name)]
    gates = sorted({f"gate {name}" for entry in found.entries for name in entry.gates})
    writer = csv.DictWriter(text, [*columns, *gates], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(name: str) -> list[str]:
    return [f"{name}_low", f"{name}_high"] if name.endswith("_interval") else [name]


def _flat(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in entry.model_dump(exclude={"gates"}).items():
        columns = _columns(name)
        values = (value or ("", "")) if len(columns) == 2 else (value,)
        found |= dict(zip(columns, values, strict=True))
    return found | {f"gate {name}": passed for name, passed in entry.gates.items()}
