"""The tables of a report: headline measurements, terms, and provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tts_compress.evaluation import formatting
from tts_compress.report.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from tts_compress.evaluation.metric import Row, Term
    from tts_compress.evaluation.result import Evaluation, ModelIdentity

_STYLES = {"better": "green", "worse": "red", "same": "", "unknown": ""}


def summary_rows(evaluation: Evaluation) -> list[Row]:
    """Return the lines of every metric: cost first, then intelligibility, then the signal."""
    return [
        row
        for metric, value in evaluation.measured()
        for row in metric.table_rows(value, evaluation)
    ]


def terms(evaluation: Evaluation) -> list[Term]:
    """Return the meaning of the terms that this report needs."""
    return [term for metric, _ in evaluation.measured() for term in metric.terms]


def floor_rows(evaluation: Evaluation) -> list[tuple[str, Any, float | None]]:
    """Return the comparison and its baselines: name, error rate, log-mel distance."""
    floors, signal = evaluation.floors, evaluation.signal
    return [
        ("Reference against compressed", evaluation.wer, signal.log_mel_distance_db),
        (
            "Reference against itself, other seeds",
            floors.other_seeds,
            floors.other_seeds_log_mel_distance_db,
        ),
        ("Recognizer, inaudibly changed audio", floors.recognizer, None),
    ]


def summary_table(evaluation: Evaluation) -> Table:
    """Return a rich table of the headline measurements, with the verdict below it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    names = (evaluation.reference.spec, evaluation.candidate.spec)
    # `Text`, never markup: a model's name may contain square brackets.
    title = Text(" against ".join(formatting.one_line(name, 60) for name in reversed(names)))
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=Text(verdict(evaluation)),
        caption_justify="left",
        caption_style="",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    table.add_column("Measurement", no_wrap=True)
    table.add_column("Reference", justify="right")
    table.add_column("Compressed", justify="right")
    table.add_column("Change")
    for row in summary_rows(evaluation):
        change = Text(row.change, style=_STYLES[row.trend])
        table.add_row(Text(row.label), Text(row.reference), Text(row.candidate), change)
    return table


def provenance(evaluation: Evaluation) -> list[tuple[str, dict[str, str]]]:
    """Return everything needed to repeat the evaluation: labelled values under each title."""
    suite, latency = evaluation.suite, evaluation.latency
    threads = "1 thread" if latency.threads == 1 else f"{latency.threads} threads"
    about_suite = {
        "name": suite.name,
        "texts": suite.texts,
        "seeds": suite.seeds,
        "recognizer": suite.recognizer,
        "text normaliser": suite.normalizer,
        "timing": f"{latency.texts} texts, {latency.runs} runs each, {threads}",
        "SHA-256": suite.sha256,
    }
    sections = {
        "Reference": _model(evaluation.reference),
        "Compressed model": _model(evaluation.candidate),
        "Suite": about_suite,
        "Machine": evaluation.environment,
    }
    return [(title, dict(_flatten(facts, ""))) for title, facts in sections.items()]


def _model(model: ModelIdentity) -> dict[str, str]:
    named = {"model": model.spec, "family": model.family, "scheme": model.scheme}
    return named | model.settings | {"SHA-256": model.sha256}


def _flatten(value: Any, label: str) -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested JSON; the label of a leaf is the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{label} {formatting.plain(str(key))}".strip())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        joined = ", ".join(formatting.plain(str(item)) for item in value)
        yield label, joined or "none"
    else:
        yield label, formatting.MISSING if value is None else formatting.plain(str(value))
