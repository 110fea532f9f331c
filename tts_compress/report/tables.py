"""The tables of a report: headline measurements, terms, and provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.evaluation import formatting
from tts_compress.report.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from tts_compress.evaluation.metric import Row, Term
    from tts_compress.evaluation.result import Evaluation, ModelIdentity

__all__ = [
    "Fact",
    "Section",
    "floor_rows",
    "provenance",
    "summary_rows",
    "summary_table",
    "terms",
]

_STYLES = {"better": "green", "worse": "red", "same": "", "unknown": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One labelled value."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The facts about one thing."""

    title: str
    facts: tuple[Fact, ...]


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


def provenance(evaluation: Evaluation) -> tuple[Section, ...]:
    """Return everything needed to repeat the evaluation, section by section."""
    suite, latency = evaluation.suite, evaluation.latency
    threads = "1 thread" if latency.threads == 1 else f"{latency.threads} threads"
    about_suite = {
        "name": suite.name,
        "texts": str(suite.texts),
        "seeds": ", ".join(str(seed) for seed in suite.seeds),
        "recognizer": suite.recognizer,
        "text normaliser": suite.normalizer,
        "timing": f"{latency.texts} texts, {latency.runs} runs each, {threads}",
        "SHA-256": suite.sha256,
    }
    return (
        _model("Reference", evaluation.reference),
        _model("Compressed model", evaluation.candidate),
        _section("Suite", about_suite),
        Section(title="Machine", facts=tuple(_flatten(evaluation.environment, ""))),
    )


def _model(title: str, model: ModelIdentity) -> Section:
    named = {"model": model.spec, "family": model.family, "scheme": model.scheme}
    return _section(title, named | model.settings | {"SHA-256": model.sha256})


def _section(title: str, facts: Mapping[str, str]) -> Section:
    shown = (Fact(label=label, value=formatting.plain(value)) for label, value in facts.items())
    return Section(title=title, facts=tuple(shown))


def _flatten(value: Any, label: str) -> Iterator[Fact]:
    """Yield the leaves of nested JSON; the label of a leaf is the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{label} {formatting.plain(str(key))}".strip())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        joined = ", ".join(formatting.plain(str(item)) for item in value)
        yield Fact(label=label, value=joined or "none")
    else:
        text = formatting.MISSING if value is None else formatting.plain(str(value))
        yield Fact(label=label, value=text)
