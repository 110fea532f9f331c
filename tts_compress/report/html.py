"""The report as one page that needs nothing but itself and the WAV files beside it."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.errors import MissingExtraError
from tts_compress.report import judgement, wording
from tts_compress.report.cards import cards
from tts_compress.report.plots import plots
from tts_compress.report.provenance import provenance
from tts_compress.report.summary import summary_rows
from tts_compress.report.terms import terms
from tts_compress.report.utterances import utterance_rows

if TYPE_CHECKING:
    from jinja2 import Environment

    from tts_compress.report.evaluation import Evaluation

__all__ = ["render_html"]

_TEMPLATES = Path(__file__).with_name("templates")


def render_html(evaluation: Evaluation) -> str:
    """Return the page; the same evaluation gives the same bytes.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    floors = evaluation.floors
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            evaluation=evaluation,
            verdict=judgement.verdict(evaluation),
            cautions=judgement.cautions(evaluation),
            cards=cards(evaluation),
            rows=summary_rows(evaluation),
            plots=plots(evaluation),
            floors=(
                ("Compressed against reference", evaluation.wer),
                ("Reference against itself, other seeds", floors.other_seeds),
                ("Recognizer, inaudibly changed audio", floors.recognizer),
            ),
            terms=terms(evaluation),
            utterances=utterance_rows(evaluation),
            provenance=provenance(evaluation),
            words=wording,
            style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
            script=script,
            script_hash=_hash_of(script),
        )
    )


def _hash_of(script: str) -> str:
    """Return the hash by which the page's policy admits this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


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
