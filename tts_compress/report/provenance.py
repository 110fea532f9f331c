"""Where the numbers come from: models, suite, machine, as labelled lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.report import wording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tts_compress.report.evaluation import Evaluation, ModelIdentity

__all__ = ["Fact", "Section", "provenance"]


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


def provenance(evaluation: Evaluation) -> tuple[Section, ...]:
    """Return everything needed to repeat the evaluation, section by section."""
    return (
        _model("Reference", evaluation.reference),
        _model("Compressed model", evaluation.candidate),
        _suite(evaluation),
        Section(title="Machine", facts=tuple(_flatten(evaluation.environment, ""))),
    )


def _model(title: str, model: ModelIdentity) -> Section:
    return _section(
        title,
        {
            "model": model.spec,
            "family": model.family,
            "scheme": model.scheme,
            **model.settings,
            "SHA-256": model.sha256,
        },
    )


def _suite(evaluation: Evaluation) -> Section:
    suite, latency = evaluation.suite, evaluation.latency
    return _section(
        "Suite",
        {
            "name": suite.name,
            "texts": str(suite.texts),
            "seeds": ", ".join(str(seed) for seed in suite.seeds),
            "recognizer": suite.recognizer,
            "text normaliser": suite.normalizer,
            "timing": (
                f"{latency.texts} texts, {latency.runs} runs each, {_threads(latency.threads)}"
            ),
            "SHA-256": suite.sha256,
        },
    )


def _section(title: str, facts: Mapping[str, str]) -> Section:
    shown = (Fact(label=label, value=wording.plain(value)) for label, value in facts.items())
    return Section(title=title, facts=tuple(shown))


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _flatten(value: Any, label: str) -> Iterator[Fact]:
    """Yield the leaves of nested JSON; the label of a leaf is the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{label} {wording.plain(str(key))}".strip())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        joined = ", ".join(wording.plain(str(item)) for item in value)
        yield Fact(label=label, value=joined or "none")
    else:
        text = wording.MISSING if value is None else wording.plain(str(value))
        yield Fact(label=label, value=text)
