"""The document of a sweep from the reports of all pairs, and its files."""

from collections.abc import Sequence

from tts_compress.artifact import MANIFEST_NAME, Manifest
from tts_compress.errors import EvaluationError, TTSCompressError, reason
from tts_compress.evaluation.gates import Gates, gate, read_gates
from tts_compress.evaluation.result import REPORT_NAME, Evaluation
from tts_compress.folders import temporary_folder
from tts_compress.progress import Progress
from tts_compress.publish.card import weights_of
from tts_compress.report import render_document
from tts_compress.sweep.document import Entry, SweepReport, table_of
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.results import Results, wrong_result
from tts_compress.sweep.units import Failure, Unit

DOCUMENT = "sweep.json"
PAGE = "index.html"
_TABLE = "sweep.csv"


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

    A report that cannot be read, or is of something else than its unit, is a failure of its pair.
    """
    done = results.keys()
    gates = [read_gates(name) for name in plan.gates]
    reports = [unit for unit in units if unit.kind == "report" and unit.key in done]
    entries = []
    failed = [*failures, *_logged(results, [unit for unit in units if unit.key not in done])]
    for count, unit in enumerate(reports):
        progress.advance("merge", count, len(reports))
        try:
            entries.append(_publish(unit, plan, results, gates))
        except TTSCompressError as error:
            failed.append(_failure(unit, reason(error)))
    progress.advance("merge", len(reports), len(reports))
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


def write_sweep(found: SweepReport, results: Results) -> None:
    """Write the document, its table and its page.

    Raises:
        ArtifactError: They cannot be written.
        MissingExtraError: The page needs jinja2 and matplotlib; the other two are written.
    """
    results.files.write(DOCUMENT, found.to_json().encode())
    results.files.write(_TABLE, table_of(found).encode())
    page = render_document("tts_compress.sweep.page:render_page", found)
    results.files.write(PAGE, page.encode())


def _publish(unit: Unit, plan: OpenPlan, results: Results, gates: Sequence[Gates]) -> Entry:
    """Copy a pair's report to its place; return its entry."""
    place = f"reports/{'/'.join(unit.chain)}"
    try:
        report = Evaluation.from_json(results.read(unit.key, REPORT_NAME))
    except EvaluationError as error:
        raise wrong_result(unit.key, f"is {reason(error)}") from error
    _check(report, unit, plan, results)
    with temporary_folder() as folder:
        results.get(unit.key, folder)
        for path in folder.iterdir():
            results.files.write(f"{place}/{path.name}", path)
    return _entry(unit, report, f"{place}/report.html", gates)


def _check(report: Evaluation, unit: Unit, plan: OpenPlan, results: Results) -> None:
    """Refuse a report that is not of its unit: of other models, another scheme or suite.

    Raises:
        ArtifactError: It is not, or the compressed model's manifest cannot be read.
    """
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
        gates={one.name: gate(report, one).passed for one in gates},
    )


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
