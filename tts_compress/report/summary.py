"""The content of a report, in whatever form: verdict, cautions, measurements, terms, provenance.

Decisions are made on the raw values, never on what is printed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tts_compress.evaluation import blame, formatting
from tts_compress.evaluation.metric import Row
from tts_compress.evaluation.metrics.error_rates import MISHEARD_AT_MOST, find_doubts
from tts_compress.evaluation.plan import POWER, spread_of
from tts_compress.evaluation.result import Evaluation, ModelIdentity, Utterance
from tts_compress.models.base import UNLIKE_UPSTREAM
from tts_compress.models.execution import PROCESSOR
from tts_compress.plain import html_table

if TYPE_CHECKING:
    from rich.table import Table

# PocketSphinx guesses what it does not recognize, and a page is mailed to people.
_COARSE = re.compile(r"\b(\w*fuck|shit|cunt|nigg|fagg|bitch|whore|slut|puss|asshole|bastard)\w*")

_INTERVAL = re.compile(r"95 % interval \S+ \N{HORIZONTAL ELLIPSIS}")

_SPEAKER_TERMS = {
    "Worst speaker": "of a voice with several, the one whose word error rate rose most, and the "
    "one whose audio is farthest from the reference's. Texts go round the speakers, so that each "
    "has few: listen to them before you judge.",
}

_STYLES = {"better": "green", "worse": "red", "same": "", "unknown": ""}


def verdict(evaluation: Evaluation) -> str:
    """Return the whole comparison as one sentence; two where utterances are broken."""
    cost = _cost(evaluation)
    health, wer = evaluation.health.candidate, evaluation.wer
    subject = f"The compressed model is {cost}"
    if evaluation.size is None:
        subject = "Recordings of the candidate against those of the reference"
    if health.defects:
        told = f" It is {cost}." if cost else ""
        return (
            f"The compressed model is not fit for use: it has broken utterances ({health}).{told}"
        )
    words = f"for words {wer.judgement}"
    if not wer.reference > MISHEARD_AT_MOST:
        change = f"its word error rate changed by {formatting.points(wer.delta)}"
        interval = f" (95 % interval {formatting.interval(wer.interval)})"
        words = f"{change}{interval if wer.interval else ''}: {wer.judgement}"
    return f"{subject}; {words}.{_power(evaluation)}{_sound(evaluation)}"


def _power(evaluation: Evaluation) -> str:
    """Return what the run could have found, where it found no difference."""
    spread = spread_of(evaluation)
    if evaluation.wer.trend != "same" or spread is None:
        return ""
    least = spread.detectable(evaluation.suite.texts, len(evaluation.suite.seeds))
    return (
        f" A loss of less than {100 * least:.1f} points could go unnoticed: {100 * POWER:g} % of "
        "such runs find one of that size."
    )


def _sound(evaluation: Evaluation) -> str:
    distortion = evaluation.distortion
    if distortion is None:
        return ""
    return (
        f" Its distortion is {distortion.words} of what telephone coding would add: "
        f"{distortion.judgement}."
    )


def _cost(evaluation: Evaluation) -> str:
    if evaluation.size is None:
        return ""
    size = formatting.times(evaluation.size.ratio, "smaller", "larger")
    sizes = {"no change": "of unchanged size", formatting.MISSING: "of unknown size"}
    speed = evaluation.latency
    if speed.interval_in_words and speed.trend == "same":
        words = f"as fast, as far as these runs can show ({speed.words}, {speed.interval_in_words})"
    else:
        speeds = {"no change": "of unchanged speed", formatting.MISSING: "of unknown speed"}
        words = speeds.get(speed.words, speed.change)
    memory = evaluation.memory
    less = formatting.times(memory and memory.ratio, "less", "more")
    saved = "" if less in sizes else f", and takes {less} memory of its own"
    return f"{sizes.get(size, size)} and {words}{saved}"


def cautions(evaluation: Evaluation) -> list[str]:
    """Return warnings to read before trusting the numbers; often none."""
    healths = {
        "compressed model": evaluation.health.candidate,
        "reference": evaluation.health.reference,
    }
    warnings = [
        f"Broken utterances of the {name}: {h}." for name, h in healths.items() if h.defects
    ]
    # Those of the evidence are in the report, too, but not in older ones.
    doubts = dict.fromkeys((*evaluation.warnings, *find_doubts(evaluation)))
    warnings += [f"{doubt[:1].upper()}{doubt[1:]}." for doubt in doubts]
    sides = (evaluation.reference, evaluation.candidate)
    # Systems in torch and graphs state places in other terms.
    places = asdict(PROCESSOR) if sides[0].family == sides[1].family else {}
    before, after = (places | side.settings for side in sides)
    if UNLIKE_UPSTREAM in before:
        warnings.append(f"Models are run {UNLIKE_UPSTREAM}: {before[UNLIKE_UPSTREAM]}.")
    warnings += [
        f"The models are not run alike: {name} of the reference is '{value}', of the compressed "
        f"model '{after[name]}'."
        for name, value in before.items()
        # One recording has many names.
        if name != "recording" and after.get(name, value) != value
    ]
    warnings += speaker_cautions(evaluation)
    if evaluation.size is None:
        return warnings
    if evaluation.latency.trend == "worse":
        warnings.append("The compressed model is slower than the reference on this machine.")
    if evaluation.size.ratio < 1:
        warnings.append("The compressed model is larger than the reference.")
    return warnings


def notes(evaluation: Evaluation) -> list[str]:
    """Return what helps to read the numbers and is no reason for alarm; often nothing."""
    wer, floors = evaluation.wer, evaluation.floors
    remarks = []
    if evaluation.size is not None and evaluation.memory is None:
        remarks.append("Memory was not measured: it cannot be on this system.")
    low, high = floors.recognizer.interval or (0.0, 0.0)
    if wer.trend in {"better", "worse"} and low <= wer.delta <= high:
        remarks.append(
            "An inaudible change to the reference's own audio moves the word error rate by "
            f"{formatting.points(floors.recognizer.delta)} (95 % interval "
            f"{formatting.interval((low, high))}); the change by compression lies within that "
            "interval, so the recognizer alone could explain it."
        )
    if floors.other_seeds.trend in {"better", "worse"}:
        remarks.append(
            f"The reference with other seeds differs from itself by "
            f"{formatting.points(floors.other_seeds.delta)} (95 % interval "
            f"{formatting.interval(floors.other_seeds.interval)}), although nothing was "
            "compressed: a change of that size is no evidence here. More seeds or texts narrow it."
        )
    if evaluation.suite.recognizer.startswith("PocketSphinx"):
        remarks.append(
            "Moonshine (--recognizer moonshine, extra 'moonshine') makes half as many errors of "
            "its own in English as PocketSphinx: with it the same texts show smaller losses."
        )
    changes = [row.change for row in summary_rows(evaluation)]
    intervals = sum(_INTERVAL.search(change) is not None for change in changes)
    if intervals > 1:
        remarks.append(
            f"This report has {intervals} intervals of 95 %. Even if nothing had changed, about "
            "one in twenty of them would show a change by chance."
        )
    return remarks


def summary_rows(evaluation: Evaluation) -> list[Row]:
    """Return the lines of every metric: cost first, then intelligibility, then the signal.

    Those of the worst speakers come last.
    """
    rows = [
        row
        for metric, value in evaluation.measured()
        for row in metric.table_rows(value, evaluation)
    ]
    return rows + speaker_rows(evaluation)


def measurement_cells(evaluation: Evaluation) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the header and the rows of the table of measurements."""
    rows: list[tuple[str, ...]] = [
        (row.label, row.reference, row.candidate, row.change) for row in summary_rows(evaluation)
    ]
    return ("Measurement", "Reference", "Compressed", "Change"), rows


def terms(evaluation: Evaluation) -> dict[str, str]:
    """Return the meaning of the terms that this report needs."""
    meanings = {
        name: meaning
        for metric, _ in evaluation.measured()
        for name, meaning in metric.terms.items()
    }
    if speaker_rows(evaluation):
        meanings |= _SPEAKER_TERMS
    return meanings if evaluation.blame is None else meanings | blame.TERMS


def heard(transcript: str, hypothesis: str) -> str:
    """Return what a recognizer heard; coarse words that nobody said are masked."""
    said = {*transcript.split()}
    return _COARSE.sub(lambda word: word[0] if word[0] in said else f"{word[0][0]}***", hypothesis)


def floor_caption(evaluation: Evaluation) -> str:
    """Return a description of the floors: what they mean, and how often each text is spoken."""
    tokens = [
        rate.counts.reference.reference_tokens
        for rate in (evaluation.floors.recognizer, evaluation.wer)
    ]
    once = ", with each text's first seed" if tokens[0] < tokens[1] else ""
    return (
        f"Noise floors: the same comparison where nothing was compressed{once}. A change of the "
        "compressed model that is no larger may be chance"
    )


def floor_rows(evaluation: Evaluation) -> list[tuple[str, Any, float | None]]:
    """Return the comparison and its baselines: name, error rate, log-mel distance."""
    floors, distance = evaluation.floors, evaluation.signal.log_mel_distance_db
    other_distance = floors.other_seeds_log_mel_distance_db
    return [
        ("Reference against compressed", evaluation.wer, distance),
        ("Reference against itself, other seeds", floors.other_seeds, other_distance),
        ("Recognizer, inaudibly changed audio", floors.recognizer, None),
    ]


def most_added_errors(evaluation: Evaluation) -> list[Utterance]:
    """Return the utterances, those with the most added word errors first."""
    return sorted(evaluation.utterances, key=lambda u: (-u.added_errors, u.index, u.seed))


def summary_table(evaluation: Evaluation) -> "Table":
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


def notebook_table(evaluation: Evaluation) -> str:
    """Return the measurements as HTML for a notebook, with verdict and cautions above them."""
    caption = " ".join([verdict(evaluation), *cautions(evaluation)])
    return html_table(*measurement_cells(evaluation), caption)


def provenance(evaluation: Evaluation) -> list[tuple[str, dict[str, str]]]:
    """Return everything needed to repeat the evaluation: labelled values under each title."""
    suite, latency = evaluation.suite, evaluation.latency
    timing = {}
    if latency is not None:
        threads = formatting.count(latency.threads, "thread")
        timing["timing"] = f"{latency.texts} texts, {latency.runs} runs each, {threads}"
    about_suite = {
        "name": suite.name,
        "texts": suite.texts,
        "seeds": suite.seeds,
        **({} if suite.language is None else {"language": suite.language}),
        "recognizer": suite.recognizer,
        "text normaliser": suite.normalizer,
        **timing,
        "SHA-256": suite.sha256,
    }
    sections = {
        "Reference": _model(evaluation.reference),
        "Compressed model": _model(evaluation.candidate),
        "Suite": about_suite,
        "Machine": evaluation.environment,
        "Time": {
            name: f"{formatting.seconds(spent.seconds)} for {formatting.count(spent.steps, 'step')}"
            for name, spent in evaluation.stages.items()
        },
    }
    return [(title, dict(flatten(facts, ""))) for title, facts in sections.items() if facts]


def _model(model: ModelIdentity) -> dict[str, str]:
    named = {"model": model.spec, "family": model.family, "scheme": model.scheme}
    if model.language is not None:
        named["language"] = model.language
    return named | model.settings | {"SHA-256": model.sha256}


def flatten(value: Any, label: str) -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested JSON; the label of a leaf is the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{label} {formatting.plain(str(key))}".strip())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        joined = ", ".join(formatting.plain(str(item)) for item in value)
        yield label, joined or "none"
    else:
        yield label, formatting.MISSING if value is None else formatting.plain(str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerResult:
    """The utterances of one speaker together."""

    name: str
    texts: int
    reference: float
    """Word error rate, summed over utterances before the division; so `candidate`."""

    candidate: float
    log_mel_distance_db: float
    """Mean over its utterances."""

    @property
    def rise(self) -> float:
        """Word error rate, candidate minus reference."""
        return self.candidate - self.reference


def speaker_results(evaluation: Evaluation) -> list[SpeakerResult]:
    """Return the result of each speaker of a voice with several, in the order of the suite.

    A suite has few texts for each, so that these are places to listen at rather than measurements.
    """
    grouped: dict[str, list[Utterance]] = {}
    for utterance in evaluation.utterances:
        if utterance.speaker is not None:
            grouped.setdefault(utterance.speaker, []).append(utterance)
    return [_summarize(name, spoken) for name, spoken in grouped.items()]


def speaker_rows(evaluation: Evaluation) -> list[Row]:
    """Return the lines of the worst speakers; none where fewer than two spoke."""
    results = speaker_results(evaluation)
    if len(results) < 2:
        return []
    heard = f"of {len(results)} heard"
    words = max(results, key=lambda result: result.rise)
    row = Row(
        label="Worst speaker, words",
        candidate="none",
        change=f"{heard}, none has more word errors",
        trend="same",
    )
    if words.rise > 0:
        row = Row(
            label=row.label,
            reference=formatting.percent(words.reference),
            candidate=formatting.percent(words.candidate),
            change=f"{_name(words)}: {formatting.points(words.rise)} over {_texts(words)}, {heard}",
        )
    sound, others = _farthest(results)
    return [
        *([] if evaluation.suite.recognizer_name == "none" else [row]),
        Row(
            label="Worst speaker, log-mel",
            candidate=formatting.decibels(sound.log_mel_distance_db),
            change=f"{_name(sound)} over {_texts(sound)}; the others: "
            f"{formatting.decibels(others)}",
            trend="worse" if _is_far(sound.log_mel_distance_db, evaluation) else "same",
        ),
    ]


def speaker_cautions(evaluation: Evaluation) -> list[str]:
    """Return a warning of a speaker that is damaged where the others are not."""
    results = speaker_results(evaluation)
    if len(results) < 2:
        return []
    worst, others = _farthest(results)
    if not _is_far(worst.log_mel_distance_db, evaluation) or _is_far(others, evaluation):
        return []
    return [
        f"Speaker {_name(worst)} is as far from the reference as other noise is, or farther: "
        f"log-mel distance {formatting.decibels(worst.log_mel_distance_db)} over "
        f"{_texts(worst)}, {formatting.decibels(others)} of the others."
    ]


def _summarize(name: str, spoken: Sequence[Utterance]) -> SpeakerResult:
    words = sum(utterance.words for utterance in spoken)
    return SpeakerResult(
        name=name,
        texts=len({utterance.index for utterance in spoken}),
        reference=sum(utterance.reference.word_errors for utterance in spoken) / words,
        candidate=sum(utterance.candidate.word_errors for utterance in spoken) / words,
        log_mel_distance_db=float(np.mean([u.log_mel_distance_db for u in spoken])),
    )


def _farthest(results: Sequence[SpeakerResult]) -> tuple[SpeakerResult, float]:
    """Return the speaker of the largest log-mel distance, and the mean of the others."""
    distances = [result.log_mel_distance_db for result in results]
    farthest = int(np.argmax(np.nan_to_num(distances, nan=np.inf)))
    return results[farthest], float(np.mean(distances[:farthest] + distances[farthest + 1 :]))


def _is_far(distance: float, evaluation: Evaluation) -> bool:
    """Return True if audio is no closer to the reference than that is with other noise."""
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    return floor > 0.0 and not distance < floor  # zero where there is no other rendering


def _name(result: SpeakerResult) -> str:
    return formatting.one_line(result.name, 40)


def _texts(result: SpeakerResult) -> str:
    return formatting.count(result.texts, "text")
