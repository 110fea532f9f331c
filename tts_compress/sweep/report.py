"""The document of a sweep from the reports of all pairs, its table, and its files."""

import csv
import io
from collections.abc import Sequence
from typing import Any, Literal

from tts_compress.artifact import MANIFEST_NAME, Manifest
from tts_compress.errors import EvaluationError, TTSCompressError, reason
from tts_compress.evaluation.gates import Gates, gate, read_gates
from tts_compress.evaluation.metric import Document, Record
from tts_compress.evaluation.result import REPORT_NAME, Evaluation, Figures
from tts_compress.folders import temporary_folder
from tts_compress.progress import Progress, counted
from tts_compress.report import write_document
from tts_compress.report.card import weights_of
from tts_compress.sweep.plan import Failure, OpenPlan, Unit
from tts_compress.sweep.results import Results, wrong_result

DOCUMENT = "sweep.json"
PAGE = "index.html"
_TABLE = "sweep.csv"


class _Pair(Record):
    """A voice and a scheme."""

    voice: str
    scheme: str
    report: str
    """Path of the page, from the sweep's folder on."""


class Entry(Figures, _Pair):
    """A voice by a scheme, and the figures of its evaluation."""

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


def merge_reports(
    plan: OpenPlan,
    results: Results,
    units: Sequence[Unit],
    failures: Sequence[Failure],
    progress: Progress,
) -> SweepReport:
    """Return the document of what is done, and put every pair's report where people find it.

    A report that cannot be read, or is of something else than its unit, is a failure of its pair.
    """
    done = results.keys()
    gates = [read_gates(name) for name in plan.gates]
    reports = [unit for unit in units if unit.kind == "report" and unit.key in done]
    entries = []
    failed = [*failures, *_logged(results, [unit for unit in units if unit.key not in done])]
    for unit in counted(reports, progress, "merge", len(reports)):
        try:
            entries.append(_publish(unit, plan, results, gates))
        except TTSCompressError as error:
            failed.append(_failure(unit, reason(error)))
    return SweepReport(
        suite=plan.suite.name,
        suite_sha256=plan.suite.sha256,
        recognizer=plan.suite.recognizer,
        voices=plan.voices,
        schemes=tuple(scheme.name for scheme in plan.schemes),
        units=len(units),
        left=_count_left(units, done, failed),
        entries=tuple(entries),
        failures=tuple(failed),
    )


def write_sweep(report: SweepReport, results: Results) -> None:
    """Write the document, its table and its page."""
    write_document(
        report,
        (PAGE, "tts_compress.sweep.page:render_page"),
        {_TABLE: table_of(report), DOCUMENT: report.to_json()},
        lambda name, text: results.files.write(name, text.encode()),
    )


def _publish(unit: Unit, plan: OpenPlan, results: Results, judges: Sequence[Gates]) -> Entry:
    """Copy a pair's report to where people find it; return its entry."""
    folder = f"reports/{'/'.join(unit.chain)}"
    try:
        report = Evaluation.from_json(results.read(unit.key, REPORT_NAME))
    except EvaluationError as error:
        raise wrong_result(unit.key, f"is {reason(error)}") from error
    _check(report, unit, plan, results)
    with temporary_folder() as copies:
        results.get(unit.key, copies)
        for path in copies.iterdir():
            results.files.write(f"{folder}/{path.name}", path)
    voice, scheme = unit.chain
    return Entry(
        voice=voice,
        scheme=scheme,
        report=f"{folder}/report.html",
        gates={gates.name: gate(report, gates).passed for gates in judges},
        **report.headline().model_dump(),
    )


def _check(report: Evaluation, unit: Unit, plan: OpenPlan, results: Results) -> None:
    """Refuse a report that is not of its unit: of other models, another scheme or suite."""
    assert unit.scheme is not None, "reports have one"
    manifest = Manifest.from_json(results.read(unit.needs[0], f"model/{MANIFEST_NAME}"))
    stated_and_right = {
        "candidate": (report.candidate.spec, "/".join(unit.chain)),
        "scheme": (report.candidate.scheme, unit.scheme.scheme),
        "compressed weights": (report.candidate.sha256, weights_of(manifest)),
        "original weights": (report.reference.sha256, manifest.source.sha256),
        "suite": (report.suite.sha256, plan.suite.sha256),
    }
    for name, (stated, right) in stated_and_right.items():
        if right is not None and stated != right:
            problem = f"is a report of another {name}: {stated!r:.40}, not {right!r:.40}"
            raise wrong_result(unit.key, problem)


def _logged(results: Results, units: Sequence[Unit]) -> list[Failure]:
    """Return the units whose last execution failed."""
    log = results.log({unit.key for unit in units})
    last = {key: executions[-1] for key, executions in log.items()}
    return [
        _failure(unit, str(last[unit.key]["failed"]))
        for unit in units
        if "failed" in last.get(unit.key, {})
    ]


def _failure(unit: Unit, why: str) -> Failure:
    voice, scheme = unit.chain
    return Failure(voice=voice, scheme=scheme, unit=unit.title, reason=why)


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


def table_of(report: SweepReport) -> str:
    """Return the entries as CSV: a column for each number, rates as shares."""
    text = io.StringIO()
    # The same columns in every sweep, also in one without entries.
    columns = [column for name in Entry.model_fields for column in _columns(name)]
    gates = sorted({f"gate {name}" for entry in report.entries for name in entry.gates})
    writer = csv.DictWriter(text, [*columns, *gates], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_row, report.entries))
    return text.getvalue()


def _columns(name: str) -> list[str]:
    """Return the columns of a field; those of the gates are of each sweep."""
    if name == "gates":
        return []
    return [f"{name}_low", f"{name}_high"] if name.endswith("_interval") else [name]


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {f"gate {name}": passed for name, passed in entry.gates.items()}
    for name, value in entry.model_dump(exclude={"gates"}).items():
        columns = _columns(name)
        values = (value or ("", "")) if len(columns) == 2 else (value,)
        row |= dict(zip(columns, values, strict=True))
    return row
