"""Which part did it: the damage that each compressed component does in the FP32 reference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot
from typing import Any

from tts_compress.compression.hybrid import compressed_components, hybrids
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Audios, Metric, find_metrics
from tts_compress.evaluation.pairs import Run, Side, UtterancePair, read_spoken, suite_jobs
from tts_compress.evaluation.result import Blame, BlamedPart
from tts_compress.evaluation.stages import choose_texts, synthesize
from tts_compress.evaluation.store import Store, Synthesis, analyze, find_analyzer
from tts_compress.evaluation.subject import Subject, open_subject
from tts_compress.folders import temporary_folder

TEXTS = 24
"""Most texts that each component speaks, with the suite's first seed."""

TITLE = "Which part did it"

TERMS = {
    TITLE: "each compressed component alone in the reference, the one with the most damage first; "
    "over all together, if their errors were independent (log-mel distances add as squares do, the "
    "rest adds up), and the whole model: what is between these is interaction. Where a duration "
    "moves by a frame, other noise follows, which raises the log-mel distance over all texts and "
    "is no loss. Of recordings the parts are the port, the original in the candidate's runtime "
    "against the original, and quantization, the candidate against the port."
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A value by which components are compared."""

    path: str
    """Its place in a report, such as `signal.log_mel_distance_db`."""

    label: str
    show: Callable[[float | None], str]
    together: Callable[[Sequence[float]], float] | None = None
    """Returns what the parts would do together if each did its damage independently of the others;
    None where that cannot be told."""

    ranks: bool = False
    """Components can be ranked by it; larger is worse."""


COLUMNS = (
    Column(
        path="distortion.value",
        label="Distortion, share of mu-law's",
        show=formatting.percent,
        together=sum,
        ranks=True,
    ),
    Column(
        path="signal.same_timing_log_mel_distance_db",
        label="Log-mel, same timing",
        show=partial(formatting.decibels, digits=3),
        together=lambda distances: hypot(*distances),  # squares of independent errors add
        ranks=True,
    ),
    Column(
        path="signal.log_mel_distance_db",
        label="Log-mel distance",
        show=partial(formatting.decibels, digits=3),
        ranks=True,
    ),
    Column(path="signal.same_timing", label="Same timing", show=formatting.percent),
    Column(
        path="dnsmos_overall.delta",
        label="DNSMOS, overall",
        show=lambda x: formatting.signed(x, 2) if formatting.is_finite(x) else formatting.MISSING,
        together=sum,
    ),
)
"""The finest measure that ranks comes first; it ranks unless a component has no value of it."""


def find_blame(run: Run) -> Blame:
    """Have the reference speak with one compressed component at a time, and compare.

    Args:
        run: The finished evaluation of the whole candidate.

    Raises:
        ModelError: The candidate has no manifest, or its components cannot be parted.
        EvaluationError: A model's process failed.
    """
    seed = run.suite.seeds[0]
    texts = choose_texts([item.text for item in run.suite.utterances], TEXTS)
    pairs = [pair for pair in run.pairs if pair.seed == seed and pair.text in texts]
    run = replace(run, suite=run.suite.with_seeds((seed,)), pairs=pairs)
    before, after = run.subjects
    names = compressed_components(after.model)
    roles = after.model.components()
    parts = []
    for name, model in hybrids(before.model, after.model, names):
        with temporary_folder() as spare:
            subject = open_subject(model, spare, run.suite.prompt, run.suite.language)
            hybrid = _compare(run, replace(subject, speakers=before.speakers), f"blame {name}")
        parts.append(BlamedPart(component=name, role=roles[name].role, values=_values(hybrid)))
    return blame_of(parts, _values(run), len(pairs), seed)


def blame_of(
    parts: Sequence[BlamedPart], whole: dict[str, float | None], texts: int, seed: int
) -> Blame:
    """Return the damage of parts, the one with the most first, beside that of the whole."""
    ranked_by = next(
        column.path
        for column in COLUMNS
        if column.ranks and all(part.values[column.path] is not None for part in parts)
    )
    worst_first = sorted(parts, key=lambda part: part.values[ranked_by] or 0.0, reverse=True)
    return Blame(
        texts=texts,
        seed=seed,
        ranked_by=ranked_by,
        parts=tuple(worst_first),
        together={c.path: _together(c, parts) for c in COLUMNS if c.together is not None},
        whole=whole,
    )


def _metrics() -> list[Metric]:
    """Return the metrics that the columns are values of."""
    names = {column.path.partition(".")[0] for column in COLUMNS}
    return [metric for metric in find_metrics() if metric.name in names]


def _compare(run: Run, hybrid: Subject, stage: str) -> Run:
    """Return the run with a hybrid in the place of the candidate."""
    store, options = run.store, run.options
    texts = [pair.index for pair in run.pairs]
    jobs = suite_jobs(hybrid, run.suite, 0, texts)
    renderings = list(synthesize(store, hybrid, jobs, options, stage=stage))
    files = {piece.audio: store.wav_path(piece) for piece in renderings}
    measured = dict(run.measured)
    for measure in {m.measure.name: m.measure for m in _metrics() if m.measure}.values():
        analyzer = find_analyzer(measure, options)
        if analyzer is not None and measure.name in measured:
            values = analyze(
                store,
                analyzer,
                files.items(),
                options,
                total=len(files),
                stage=f"{stage}, {measure.name}",
            )
            measured[measure.name] = {**measured[measure.name], **values}
    side = Side(role="reference", model=run.subjects[0], suite=run.suite, texts=texts)
    spoken: dict[str, list[Synthesis]] = {"candidate": renderings}
    for role, _, piece in side.speak(store, options):  # which the evaluation has spoken
        spoken.setdefault(role, []).append(piece)
    pairs = [
        _with_candidate(store, pair, dict(zip(spoken, pieces, strict=True)))
        for pair, *pieces in zip(run.pairs, *spoken.values(), strict=True)
    ]
    return replace(run, models=(run.subjects[0], hybrid), pairs=pairs, measured=measured)


def _with_candidate(
    store: Store, pair: UtterancePair, pieces: Mapping[str, Synthesis]
) -> UtterancePair:
    roles = ("reference", "candidate", "other_seed")
    reference, candidate, other = (read_spoken(store, pieces[role]) for role in roles)
    audios = Audios(reference=reference, candidate=candidate, other_seed=other)
    return replace(
        pair,
        audio={**pair.audio, "candidate": pieces["candidate"].audio},
        observed={m.name: m.observe(audios) for m in _metrics() if m.observe},
    )


def _values(run: Run) -> dict[str, float | None]:
    """Return the value of each column; None where it was not measured or is not a number."""
    return column_values({metric.name: metric.compute(run) for metric in _metrics()})


def column_values(results: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the value of each column, given those of metrics by name."""
    values: dict[str, float | None] = {}
    for column in COLUMNS:
        name, _, field = column.path.partition(".")
        value = None if results.get(name) is None else getattr(results[name], field)
        values[column.path] = value if formatting.is_finite(value) else None
    return values


def _together(column: Column, parts: Sequence[BlamedPart]) -> float | None:
    values = [part.values[column.path] for part in parts]
    measured = [value for value in values if value is not None]
    return column.together(measured) if column.together and len(measured) == len(values) else None


def ranking(blame: Blame) -> Column:
    """Return the column by which components are ranked."""
    return next(column for column in COLUMNS if column.path == blame.ranked_by)


def blame_sentence(blame: Blame) -> str:
    """Return the outcome: the first component, its damage and that of the whole model."""
    column, first = ranking(blame), blame.parts[0]
    measure = f"({column.label}; {formatting.count(blame.texts, 'text')})"
    if (first.values[column.path] or 0.0) <= 0.0:
        return f"No component alone does damage {measure}."
    return (
        f"{_named(first.component, first.role)} does the most damage: "
        f"{column.show(first.values[column.path])} where the whole model has "
        f"{column.show(blame.whole[column.path])} {measure}."
    )


def blame_table(blame: Blame) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the header and the lines: components, all of them together, the whole model.

    Columns that nothing has a value of are left out.
    """
    columns = [column for column in COLUMNS if blame.whole.get(column.path) is not None]
    lines = [(_named(part.component, part.role), part.values) for part in blame.parts]
    lines += [("All parts, if independent", blame.together), ("Whole model", blame.whole)]
    rows = [
        (
            name,
            *(
                column.show(values[column.path]) if column.path in values else ""
                for column in columns
            ),
        )
        for name, values in lines
    ]
    return ["Component", *(column.label for column in columns)], rows


def _named(component: str, role: str) -> str:
    name = formatting.one_line(component, 40)
    return f"{role[0].upper()}{role[1:]} ({name})" if role else name
