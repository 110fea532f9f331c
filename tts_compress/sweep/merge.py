"""The document of a sweep from the reports of all pairs, and its files."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

import tts_compress.report
from tts_compress.artifact import MANIFEST_NAME, Manifest
from tts_compress.errors import EvaluationError, MissingExtraError, TTSCompressError, reason
from tts_compress.evaluation import formatting
from tts_compress.evaluation.gates import Gates, gate, read_gates
from tts_compress.evaluation.result import REPORT_NAME, Evaluation
from tts_compress.folders import temporary_folder
from tts_compress.progress import Progress
from tts_compress.publish.card import weights_of
from tts_compress.report.plots import COLORS, Plot, draw_svg, new_axes
from tts_compress.sweep.document import Entry, FailedWork, SweepReport, table_of
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.results import Results, wrong_result
from tts_compress.sweep.units import Failure, Unit

_OWN = Path(__file__).with_name("templates")
_SHARED = Path(tts_compress.report.__file__).with_name("templates")
_ENVIRONMENT = Environment(
    loader=ChoiceLoader([FileSystemLoader(_OWN), FileSystemLoader(_SHARED)]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)

_MARKERS = "osD^vPX*<>"
"""Shapes of schemes, in the order of the plan; after the last one they come again."""

_SHADES = ("candidate", "floor", "reference", "ink")


class _Axis(NamedTuple):
    """A quantity of a picture."""

    label: str
    value: Callable[[Entry], float | None]


_SIZE = _Axis("size, share of the reference in %", lambda e: 100 / e.size_ratio)
_SPEED = _Axis("speed, times the reference's", lambda e: e.speed)
_WORDS = _Axis("change of WER, points", lambda e: 100 * e.wer_delta)
_OPINION = _Axis("DNSMOS, overall", lambda e: e.dnsmos_candidate)

_PICTURES = (
    ("Size and words", "Scatter plot of size and words", _SIZE, _WORDS, "Better is left and low."),
    (
        "Speed and words",
        "Scatter plot of speed and words",
        _SPEED,
        _WORDS,
        "Better is right and low.",
    ),
    (
        "Size and opinion",
        "Scatter plot of size and opinion score",
        _SIZE,
        _OPINION,
        "Better is left and high.",
    ),
)


def render_page(found: SweepReport) -> str:
    """Return the page; the same document gives the same bytes."""
    script = (_OWN / "sweep.js").read_text(encoding="utf-8")
    style = (_SHARED / "report.css").read_text(encoding="utf-8")
    return _ENVIRONMENT.get_template("sweep.html.j2").render(
        sweep=found,
        verdict=_verdict(found),
        pictures=_pictures(found),
        words=formatting,
        link=quote,
        best=_best(found),
        has_opinions=any(entry.dnsmos_candidate is not None for entry in found.entries),
        has_distortion=any(entry.distortion is not None for entry in found.entries),
        style=style + (_OWN / "sweep.css").read_text(encoding="utf-8"),
        script=script,
        # The page's policy admits this script and no other.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _verdict(found: SweepReport) -> str:
    """Return the whole sweep as a few sentences."""
    pairs = len(found.voices) * len(found.schemes)
    passed = sum(all(entry.gates.values()) for entry in found.entries)
    done = f"{len(found.entries)} of {pairs} pairs of voice and scheme have a report"
    judged = f"; {passed} passed every gate" if found.entries else ""
    count = len(found.failures)
    failed = f" {count} {'failure' if count == 1 else 'failures'}." if count else ""
    left = f" {found.left} of {found.units} units are still to be done." if found.left else ""
    return f"{done}{judged}.{failed}{left}"


def _best(found: SweepReport) -> list[tuple[str, Entry]]:
    """Return the smallest and the fastest pair of those that passed every gate."""
    passed = [entry for entry in found.entries if entry.gates and all(entry.gates.values())]
    if not passed:
        return []
    smallest = min(passed, key=lambda entry: 1 / entry.size_ratio)
    return [("Smallest that passed", smallest), ("Fastest that passed", max(passed, key=_speed))]


def _speed(entry: Entry) -> float:
    return entry.speed


def _pictures(found: SweepReport) -> list[Plot]:
    plots = []
    for title, label, across, up, caption in _PICTURES:
        points = [entry for entry in found.entries if _is_shown(entry, across, up)]
        if not points and up is _OPINION:
            continue
        svg = draw_svg(label, partial(_scatter, points, found.schemes, across, up))
        plots.append(Plot(title, svg, f"{caption} Each point leads to its report."))
    return plots


def _is_shown(entry: Entry, across: _Axis, up: _Axis) -> bool:
    return formatting.is_finite(across.value(entry)) and formatting.is_finite(up.value(entry))


def _scatter(
    entries: list[Entry], schemes: tuple[str, ...], across: _Axis, up: _Axis
) -> Figure | None:
    """Draw a point for each pair, which leads to its report; a shape and shade for each scheme."""
    if not entries:
        return None
    figure, axes = new_axes(left=0.16)
    axes.grid()
    if up is _WORDS:
        axes.axhline(0, color=COLORS["muted"], linewidth=1.2)
    for place, scheme in enumerate(schemes):
        own = [entry for entry in entries if entry.scheme == scheme]
        points = axes.scatter(
            np.array([across.value(entry) for entry in own], np.float64),
            np.array([up.value(entry) for entry in own], np.float64),
            s=64,
            marker=_MARKERS[place % len(_MARKERS)],
            color=COLORS[_SHADES[place % len(_SHADES)]],
            edgecolors=COLORS["paper"],
            linewidths=0.8,
            label=scheme,
        )
        points.set_urls([quote(entry.report) for entry in own])
    axes.set(xlabel=across.label, ylabel=up.label)
    axes.margins(0.1)
    _add_legend(figure, len(schemes))
    return figure


def _add_legend(figure: Figure, names: int) -> None:
    """Put the names of the points below a figure, which grows by that: inside they hide points."""
    width, height = figure.get_size_inches()
    below = (8 + 20 * -(-names // 2)) / 72
    share = height / (height + below)
    figure.set_size_inches(width, height + below)
    figure.subplots_adjust(bottom=1 - share * 0.82, top=1 - share * 0.02)
    figure.legend(loc="lower left", ncols=2, frameon=False, borderpad=0, columnspacing=1.0)


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
        from tts_compress.sweep.merge import render_page
    except ImportError as error:
        raise MissingExtraError(error.name or "jinja2", "evaluate") from error
    results.files.write(PAGE, render_page(found).encode())


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
            results.files.upload(path, f"{place}/{path.name}")
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
