"""The report as one page that needs nothing but itself, with its figures as inline SVG."""

import base64
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import jiwer
from matplotlib.figure import Figure

from tts_compress.evaluation import blame, formatting, gate, read_gates
from tts_compress.evaluation.metric import Pair
from tts_compress.evaluation.metrics.cost import load_label
from tts_compress.evaluation.normalizers import UNSPACED
from tts_compress.evaluation.result import Evaluation, Speech, Utterance
from tts_compress.evaluation.stages import choose_texts
from tts_compress.report import summary
from tts_compress.report.markdown import conclusion
from tts_compress.report.pages import COLORS, Plot, draw_svg, new_axes, render, write_above

_TEMPLATE = Path(__file__).with_name("templates") / "report.html.j2"

_MOST_BARS = 5
"""Components that have a bar; a figure has no room for more."""

_TOKEN = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
"""A word, or a character of a script without spaces."""


class Span(NamedTuple):
    """Neighbouring words that went the same way."""

    kind: str
    """`equal`, `substitute`, `delete` or `insert`."""

    expected: str
    """Words of the transcript; empty for an insertion."""

    heard: str
    """Words of the hypothesis; empty for a deletion."""


class Player(NamedTuple):
    """The audio of one speech, as far as a reader of the page has it."""

    player: str | None
    """URL for a player: the audio itself, or the WAV file."""

    file: str | None
    """Relative URL of the WAV file."""


def render_page(evaluation: Evaluation) -> str:
    """Return the page; the same evaluation gives the same bytes."""
    sources = {
        (utterance.index, utterance.seed): _players(evaluation, utterance)
        for utterance in evaluation.utterances
    }
    has_files = any(source.file for pair in sources.values() for source in pair)
    return render(
        _TEMPLATE,
        evaluation=evaluation,
        summary=summary,
        blame=blame,
        plots=plots(evaluation),
        align=align,
        is_spelled_out=_is_spelled_out,
        lengthening=_lengthening,
        gates=conclusion(gate(evaluation, read_gates("default"))),
        sources=sources,
        has_files=has_files,
        audio_note=_audio_note(evaluation, has_files),
    )


def _players(evaluation: Evaluation, utterance: Utterance) -> tuple[Player, Player]:
    """Return the audio of the reference and of the candidate."""
    inside = evaluation.opus.get(
        (utterance.index, utterance.seed), Pair(reference=b"", candidate=b"")
    )
    return (
        _player(inside.reference, utterance.reference),
        _player(inside.candidate, utterance.candidate),
    )


def _player(ogg: bytes, speech: Speech) -> Player:
    file = _relative_url(speech.audio)
    data = f"data:audio/ogg;base64,{base64.b64encode(ogg).decode()}" if ogg else None
    return Player(data or file, file)


def _audio_note(evaluation: Evaluation, has_files: bool) -> str:
    """Return where the audio is, and how exact it is."""
    inside, count = len(evaluation.opus), len(evaluation.utterances)
    if not inside:
        if has_files:
            return "The players need the folder of WAV files that was written beside this page."
        return "No audio is inside this page."
    share = f"all {count}"
    if inside < count:
        share = (
            f"{inside} of {count}: those that are damaged, have the most added word errors, or are "
            "farthest from the reference"
        )
    exact = "are beside this page" if has_files else "come with evaluate --wav"
    return (
        f"Utterances with audio inside this page: {share}. It is as loud as it was spoken. Its "
        f"coding (Opus) adds a little noise to both voices alike; exact WAV files {exact}."
    )


def _lengthening(utterance: Utterance) -> float | None:
    """Return the share by which the candidate is longer; None where it is unknown."""
    before, after = utterance.reference.seconds, utterance.candidate.seconds
    change = after / before - 1 if formatting.is_finite(before) and before > 0 else None
    return change if formatting.is_finite(change) else None


def _is_spelled_out(utterance: Utterance) -> bool:
    """Return True if the transcript has other letters than the text, such as `ten` for `10`."""
    text, transcript = (
        "".join(character for character in written.casefold() if character.isalnum())
        for written in (utterance.text, utterance.transcript)
    )
    return text != transcript


def _relative_url(path: str | None) -> str | None:
    """Return the URL of a file beside or below the report, or None.

    A report is read by others than its writer: no path in it makes a browser leave the folder.
    Quoting leaves no colon, so that nothing is taken for a scheme.
    """
    if not path:
        return None
    parts = path.split("/")
    if "\\" in path or ".." in parts or parts[0] == "":
        return None
    return quote(path)


def align(transcript: str, hypothesis: str) -> tuple[Span, ...]:
    """Return the hypothesis as spans of equal, substituted, deleted and inserted words.

    The alignment is that of the word error rate. Substitutions stay word by word, so that pairs
    read together.
    """
    expected, heard = (_TOKEN.findall(formatting.plain(text)) for text in (transcript, hypothesis))
    if not expected:
        return (Span("insert", "", " ".join(heard)),) if heard else ()
    spans: list[Span] = []
    for chunk in jiwer.process_words(" ".join(expected), " ".join(heard)).alignments[0]:
        before = expected[chunk.ref_start_idx : chunk.ref_end_idx]
        after = heard[chunk.hyp_start_idx : chunk.hyp_end_idx]
        if chunk.type == "substitute":
            spans.extend(Span("substitute", *pair) for pair in zip(before, after, strict=True))
        else:
            spans.append(Span(chunk.type, " ".join(before), " ".join(after)))
    return tuple(spans)


def plots(evaluation: Evaluation) -> list[Plot]:
    """Return the figures of the page."""
    asked = _PLOTS if evaluation.blame is None else (*_PLOTS, _BLAME)
    drawn = [
        Plot(title, draw_svg(label, partial(draw, evaluation)), caption)
        for title, label, caption, draw in (*asked, *_GROWTHS)
    ]
    return [plot for number, plot in enumerate(drawn) if plot.svg or number < len(asked)]


def _draw_words(evaluation: Evaluation) -> Figure | None:
    """Draw the forest plot: each change of the word error rate as a point with its interval."""
    lines = [
        ("Compressed against reference", evaluation.wer, "candidate"),
        ("Reference, other seeds", evaluation.floors.other_seeds, "floor"),
        ("Recognizer alone", evaluation.floors.recognizer, "floor"),
    ]
    shown = [line for line in lines if _all_finite(line[1].delta, *(line[1].interval or ()))]
    if not shown or evaluation.suite.recognizer_name == "none":
        return None
    figure, axes = new_axes()
    axes.axvline(0, color=COLORS["muted"], linewidth=1.2)
    axes.grid(axis="x")
    for row, (name, rate, color) in enumerate(shown):
        ends = [100 * bound for bound in rate.interval or (rate.delta, rate.delta)]
        axes.plot(ends, [row, row], color=COLORS[color], linewidth=3, solid_capstyle="round")
        axes.plot([100 * rate.delta], [row], "o", color=COLORS[color], markersize=9)
        write_above(axes, row, f"{name}: {formatting.points(rate.delta)}")
    axes.set(ylim=(len(shown) - 0.5, -0.75), yticks=[], xlabel="change in percentage points")
    axes.margins(x=0.08)
    return figure


def _draw_distances(evaluation: Evaluation) -> Figure | None:
    """Draw the histogram of the utterances' distances, with the floor as a line."""
    values = [u.log_mel_distance_db for u in evaluation.utterances]
    values = [value for value in values if math.isfinite(value)]
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    if not values:
        return None
    figure, axes = new_axes(left=0.12)
    axes.grid(axis="y")
    # Starting from zero: the distance to the floor is the message, not the spread.
    widest = max(*values, floor if math.isfinite(floor) else 0.0, 0.1)
    bins = min(48, max(24, math.isqrt(len(values)) * 3))
    axes.hist(values, bins=bins, range=(0, widest), color=COLORS["candidate"])
    if 0.0 < floor < math.inf:  # zero where the reference has no other rendering
        axes.axvline(floor, color=COLORS["floor"], linewidth=3)
        on_left = floor > widest / 2
        axes.annotate(
            "other seeds",
            (floor, 1),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="right" if on_left else "left",
            xytext=(-6 if on_left else 6, -12),
        )
    axes.set(xlim=(0, widest * 1.03), xlabel="log-mel distance, dB", ylabel="utterances")
    axes.locator_params(axis="y", integer=True)
    return figure


def _draw_costs(evaluation: Evaluation) -> Figure | None:
    """Draw what the candidate needs as a share of what the reference needs."""
    size, load = evaluation.size, evaluation.load
    if size is None:
        return None
    before, after = evaluation.latency.reference, evaluation.latency.candidate
    memory = evaluation.memory
    shares = memory and (memory.reference.model_bytes, memory.candidate.model_bytes)
    in_bytes, in_ms = formatting.bytes_of, formatting.milliseconds
    costs = [
        ("Size", size.reference_bytes, size.candidate_bytes, in_bytes),
        ("Latency, mean", before.mean_ms, after.mean_ms, in_ms),
        ("Latency, p95", before.p95_ms, after.p95_ms, in_ms),
        ("Memory of the model", *(shares or (None, None)), in_bytes),
        (load_label(load), load.reference.open_ms, load.candidate.open_ms, in_ms),
    ]
    bars = [bar for bar in costs if _all_finite(bar[1], bar[2]) and bar[1] > 0]
    if not bars:
        return None
    figure, axes = new_axes()
    axes.grid(axis="x")
    for row, (name, reference, candidate, written) in enumerate(bars):
        axes.barh(row, 100 * candidate / reference, height=0.34, color=COLORS["candidate"])
        write_above(axes, row, f"{name}: {written(candidate)} of {written(reference)}")
    axes.axvline(100, color=COLORS["reference"], linewidth=3)
    axes.set(ylim=(len(bars) - 0.6, -0.75), yticks=[], xlabel="per cent of the reference")
    return figure


def _draw_blame(evaluation: Evaluation) -> Figure | None:
    """Draw the damage of each component alone, and of the whole model below."""
    damage = evaluation.blame
    if damage is None:
        return None
    column = blame.ranking(damage)
    bars = [(part.component, part.values[column.path], "candidate") for part in damage.parts]
    bars = [*bars[:_MOST_BARS], ("whole model", damage.whole[column.path], "reference")]
    shown = [(name, value, color) for name, value, color in bars if formatting.is_finite(value)]
    figure, axes = new_axes()
    axes.grid(axis="x")
    for row, (name, value, color) in enumerate(shown):
        axes.barh(row, value, height=0.34, color=COLORS[color])
        write_above(axes, row, f"{name}: {column.show(value)}")
    together = damage.together.get(column.path)
    if formatting.is_finite(together):
        axes.axvline(together, color=COLORS["floor"], linewidth=3)
    axes.set(ylim=(len(shown) - 0.6, -0.75), yticks=[], xlabel=column.label)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda value, _: column.show(value))
    return figure


_Points: TypeAlias = Sequence[tuple[float, float]]


def _first_sounds(evaluation: Evaluation) -> tuple[_Points, ...]:
    """Return characters of timed texts, and milliseconds until their first sound, of each model."""
    first = evaluation.first_audio
    if first is None:
        return ()
    texts = choose_texts([utterance.text for utterance in evaluation.utterances], first.texts)
    return tuple(
        [(len(text), median(runs)) for text, runs in zip(texts, model.runs_ms, strict=False)]
        for model in (first.reference, first.candidate)
    )


def _memories(evaluation: Evaluation) -> tuple[_Points, ...]:
    """Return characters of texts, and the models' own memory in MB once they were spoken."""
    memory = evaluation.memory
    sides = () if memory is None else (memory.reference, memory.candidate)
    return tuple([(length, share / 1e6) for length, share in side.growth] for side in sides)


def _draw_growth(
    points_of: Callable[[Evaluation], tuple[_Points, ...]], unit: str, evaluation: Evaluation
) -> Figure | None:
    """Draw a cost of both models by the length of the text; None where it was not measured."""
    sides = points_of(evaluation)
    if not sides or not all(sides):
        return None
    figure, axes = new_axes(left=0.16)
    axes.grid()
    for name, points in zip(("reference", "candidate"), sides, strict=True):
        axes.plot(*zip(*points, strict=True), "o-", color=COLORS[name])
        label = "compressed" if name == "candidate" else name
        axes.annotate(label, points[-1], (0, 7), textcoords="offset points", ha="right")
    axes.set(xlabel="characters of the text", ylabel=unit)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    return figure


_Draw: TypeAlias = tuple[str, str, str, Callable[[Evaluation], Figure | None]]

_BLAME: _Draw = (
    blame.TITLE,
    "Bars of the damage that each component does alone",
    "The reference with one compressed component at a time; shorter is better. The line is what "
    "all would do together if their errors were independent.",
    _draw_blame,
)

_GROWTHS: tuple[_Draw, ...] = (
    (
        "First sound by length of text",
        "Lines of the time until the first sound by the length of the text",
        "Median time until the first sound of each timed text, in ms. It hardly grows "
        "with the text where a voice is in stages.",
        partial(_draw_growth, _first_sounds, "ms"),
    ),
    (
        "Memory by length of text",
        "Lines of the memory of the model by the length of the text",
        "Peak of a process that speaks texts of growing length, less what Python and the runtime "
        "take, in MB.",
        partial(_draw_growth, _memories, "MB"),
    ),
)
"""Figures that are left out where nothing was measured, as in older reports."""

_PLOTS: tuple[_Draw, ...] = (
    (
        "Words: change and noise floors",
        "Forest plot of the changes of the word error rate",
        "Change of the word error rate with its 95 % interval; right of zero is worse. The two "
        "floors compare the reference with itself: a change no wider than they are is noise.",
        _draw_words,
    ),
    (
        "Sound: distance from the reference",
        "Histogram of the log-mel distance of each utterance",
        "Number of utterances by log-mel distance, compressed against reference with the same "
        "noise. The line is the mean distance of two seeds of the reference.",
        _draw_distances,
    ),
    (
        "Cost: share of the reference",
        "Bars of size, latency, memory and load time",
        "What the compressed model needs of what the reference needs; shorter is better.",
        _draw_costs,
    ),
)
"""Title, text alternative, caption and drawing of each figure; a text alternative is plain words,
no markup, and another one for each figure."""


def _all_finite(*values: float | None) -> bool:
    return all(map(formatting.is_finite, values))
