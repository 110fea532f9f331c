"""The report as one page that needs nothing but itself."""

import base64
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import jiwer

from tts_compress.evaluation import formatting, gate, read_gates
from tts_compress.evaluation.metric import Pair
from tts_compress.evaluation.result import Evaluation, Speech, Utterance
from tts_compress.report import blame, summary
from tts_compress.report.pages import render
from tts_compress.report.plots import plots
from tts_compress.report.verdicts import conclusion

_TEMPLATE = Path(__file__).with_name("templates") / "report.html.j2"

# Chinese and Japanese are written without spaces: each character is a token of its own.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Span(NamedTuple):
    """Neighbouring words that went the same way."""

    kind: str
    """`equal`, `substitute`, `delete` or `insert`."""

    expected: str
    """Words of the transcript; empty for an insertion."""

    heard: str
    """Words of the hypothesis; empty for a deletion."""


class Source(NamedTuple):
    """The audio of one speech, as far as a reader of the page has it."""

    player: str | None
    """URL for a player: the audio itself, or the WAV file."""

    file: str | None
    """Relative URL of the WAV file."""


def render_page(evaluation: Evaluation) -> str:
    """Return the page; the same evaluation gives the same bytes."""
    sources = {(one.index, one.seed): _sources(evaluation, one) for one in evaluation.utterances}
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


def _sources(evaluation: Evaluation, utterance: Utterance) -> tuple[Source, Source]:
    """Return the audio of the reference and of the candidate."""
    inside = evaluation.opus.get(
        (utterance.index, utterance.seed), Pair(reference=b"", candidate=b"")
    )
    return (
        _source(inside.reference, utterance.reference),
        _source(inside.candidate, utterance.candidate),
    )


def _source(ogg: bytes, speech: Speech) -> Source:
    file = _relative_url(speech.audio)
    data = f"data:audio/ogg;base64,{base64.b64encode(ogg).decode()}" if ogg else None
    return Source(data or file, file)


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
