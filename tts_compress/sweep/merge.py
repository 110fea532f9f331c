"""The document of a sweep: one entry for each pair, from its report, and what failed."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tts_compress.errors import MissingExtraError
from tts_compress.evaluation.gates import Gates, check, read_gates
from tts_compress.evaluation.metric import Record
from tts_compress.evaluation.result import Evaluation, read_report
from tts_compress.progress import Progress
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.results import Results
from tts_compress.sweep.units import Failure, Unit

DOCUMENT = "sweep.json"
PAGE = "index.html"
_TABLE = "sweep.csv"


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
    wer_interval: tuple[float, float]
    distortion: float | None
    """Change of the distortion as a share of what telephone coding adds; None if not measured."""

    dnsmos_reference: float | None
    dnsmos_candidate: float | None
    gates: dict[str, bool]
    """True for those that passed, by name."""


TIMINGS = frozenset({"speed", "speed_interval", "peak_bytes"})
"""Fields that differ from run to run."""


class FailedWork(Record):
    """Work that could not be done."""

    voice: str
    scheme: str
    unit: str
    reason: str


class SweepReport(Record):
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
    failures: tuple[FailedWork, ...]

    @property
    def is_complete(self) -> bool:
        """True if every pair has its report."""
        return not (self.failures or self.left)

    @property
    def passed(self) -> bool:
        """True if every pair that has a report passed every gate."""
        return all(all(entry.gates.values()) for entry in self.entries)

    def to_json(self) -> str:
        """Return the document's text."""
        return self.model_dump_json(indent=2) + "\n"


def merge_reports(
    plan: OpenPlan,
    results: Results,
    units: Sequence[Unit],
    failures: Sequence[Failure],
    progress: Progress,
) -> SweepReport:
    """Return the document of what is done, and put every pair's report where people find it.

    Args:
        plan: The plan.
        results: The results of units.
        units: All units.
        failures: What could not even be planned.
        progress: Is advanced with each report.

    Raises:
        ArtifactError: A report cannot be read or written.
    """
    done = results.keys()
    gates = [read_gates(name) for name in plan.gates]
    reports = [unit for unit in units if unit.kind == "report" and unit.key in done]
    entries = []
    for count, unit in enumerate(reports):
        progress.advance("merge", count, len(reports))
        entries.append(_publish(unit, results, gates))
    progress.advance("merge", len(reports), len(reports))
    failed = [*failures, *_logged(results, [unit for unit in units if unit.key not in done])]
    return SweepReport(
        suite=plan.suite.name,
        suite_sha256=plan.suite.sha256,
        recognizer=plan.suite.recognizer,
        voices=plan.voices,
        schemes=tuple(scheme.name for scheme in plan.schemes),
        units=len(units),
        left=_count_left(units, done, failed),
        entries=tuple(entries),
        failures=tuple(FailedWork(**failure.model_dump()) for failure in failed),
    )


def write_sweep(found: SweepReport, results: Results) -> None:
    """Write the document, its table and its page.

    Raises:
        ArtifactError: They cannot be written.
        MissingExtraError: The page needs jinja2 and matplotlib; the other two are written.
    """
    results.files.write(DOCUMENT, found.to_json().encode())
    results.files.write(_TABLE, table_of(found).encode())
    try:
        from tts_compress.sweep.page import render_page
    except ImportError as error:
        raise MissingExtraError(error.name or "jinja2", "evaluate") from error
    results.files.write(PAGE, render_page(found).encode())


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


def _publish(unit: Unit, results: Results, gates: Sequence[Gates]) -> Entry:
    """Copy a pair's report to its place; return its entry."""
    place = f"reports/{'/'.join(unit.chain)}"
    with TemporaryDirectory() as folder:
        results.get(unit.key, Path(folder))
        for path in Path(folder).iterdir():
            results.files.upload(path, f"{place}/{path.name}")
        report = read_report(folder)
    return _entry(unit, report, f"{place}/report.html", gates)


def _entry(unit: Unit, report: Evaluation, page: str, gates: Sequence[Gates]) -> Entry:
    voice, scheme = unit.chain
    speed, wer, opinion = report.latency, report.wer, report.dnsmos_overall
    return Entry(
        voice=voice,
        scheme=scheme,
        report=page,
        reference_bytes=report.size.reference_bytes,
        candidate_bytes=report.size.candidate_bytes,
        size_ratio=report.size.ratio,
        speed=speed.ratio,
        speed_interval=speed.interval,
        peak_bytes=report.memory.candidate.peak_bytes,
        wer_reference=wer.reference,
        wer_candidate=wer.candidate,
        wer_delta=wer.delta,
        wer_interval=wer.interval,
        distortion=report.distortion and report.distortion.value,
        dnsmos_reference=opinion and opinion.reference,
        dnsmos_candidate=opinion and opinion.candidate,
        gates={one.name: check(report, one).passed for one in gates},
    )


def _logged(results: Results, units: Sequence[Unit]) -> list[Failure]:
    """Return the units whose last execution failed."""
    log = results.log({unit.key for unit in units})
    last = {key: executions[-1] for key, executions in log.items()}
    return [
        Failure(
            voice=unit.voice.name,
            scheme=unit.scheme.name if unit.scheme else "",
            unit=unit.title,
            reason=str(last[unit.key]["failed"]),
        )
        for unit in units
        if "failed" in last.get(unit.key, {})
    ]


def _count_left(units: Sequence[Unit], done: set[str], failed: Sequence[Failure]) -> int:
    """Return the number of units to do, without those that failed and those that need them."""
    titles = {failure.unit for failure in failed}
    lost: set[str] = set()
    left = 0
    for unit in units:
        if unit.key in done:
            continue
        if unit.title in titles or lost & {*unit.needs}:
            lost.add(unit.key)
        else:
            left += 1
    return left
