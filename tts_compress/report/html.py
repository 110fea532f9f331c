"""The report as one page that needs nothing but itself and the WAV files beside it."""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment

from tts_compress.errors import MissingExtraError
from tts_compress.evaluation import formatting
from tts_compress.evaluation.result import Evaluation, Speech, Utterance
from tts_compress.report.plots import plots
from tts_compress.report.tables import floor_rows, provenance, summary_rows, terms
from tts_compress.report.verdict import cautions, verdict

_TEMPLATES = Path(__file__).with_name("templates")

# Chinese and Japanese are written without spaces: each character is a token of its own.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring words that went the same way."""

    kind: str
    """`equal`, `substitute`, `delete` or `insert`."""

    expected: str
    """Words of the transcript; empty for an insertion."""

    heard: str
    """Words of the hypothesis; empty for a deletion."""


def render_html(evaluation: Evaluation) -> str:
    """Return the page; the same evaluation gives the same bytes.

    Raises:
        MissingExtraError: jinja2, matplotlib or jiwer is not installed.
    """
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            evaluation=evaluation,
            verdict=verdict(evaluation),
            cautions=cautions(evaluation),
            rows=summary_rows(evaluation),
            plots=plots(evaluation),
            floors=floor_rows(evaluation),
            terms=terms(evaluation),
            utterances=_utterance_rows(evaluation),
            provenance=provenance(evaluation),
            words=formatting,
            style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
            script=script,
            # The page's policy admits this script and no other.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("jinja2", "evaluate") from error
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _utterance_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the utterances for the template, those with the most added word errors first."""
    rows = [_row(utterance) for utterance in evaluation.utterances]
    return sorted(rows, key=lambda row: (-row["added"], row["u"].index, row["u"].seed))


def _row(utterance: Utterance) -> dict[str, Any]:
    reference, candidate = utterance.reference, utterance.candidate
    known = formatting.is_finite(reference.seconds) and reference.seconds > 0
    lengthening = candidate.seconds / reference.seconds - 1 if known else None
    return {
        "u": utterance,
        "added": candidate.word_errors - reference.word_errors,
        # `ten` for `10`, for example.
        "spelled_out": _letters(utterance.text) != _letters(utterance.transcript),
        "changed": reference.hypothesis != candidate.hypothesis,
        "lengthening": lengthening if formatting.is_finite(lengthening) else None,
        "renderings": [
            _rendering("Reference", utterance.transcript, reference),
            _rendering("Compressed", utterance.transcript, candidate),
        ],
    }


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def _rendering(name: str, transcript: str, speech: Speech) -> dict[str, Any]:
    known = formatting.is_finite(speech.seconds)
    return {
        "name": name,
        "spans": align(formatting.plain(transcript), formatting.plain(speech.hypothesis)),
        "seconds": f"{speech.seconds:.2f} s" if known else formatting.MISSING,
        "audio": _relative_url(speech.audio),
    }


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
    try:
        import jiwer
    except ImportError as error:
        raise MissingExtraError("jiwer", "evaluate") from error
    expected, heard = _TOKEN.findall(transcript), _TOKEN.findall(hypothesis)
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
