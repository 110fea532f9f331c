"""The page of a blind listening test: needs nothing but itself, and saves answers as a file."""

from pathlib import Path

from tts_compress.evaluation.listening import ListeningTest
from tts_compress.report.pages import render

_TEMPLATE = Path(__file__).with_name("templates") / "listening.html.j2"


def render_listening_page(test: ListeningTest) -> str:
    """Return the page; the same test gives the same bytes."""
    return render(_TEMPLATE, test=test, document=test.model_dump_json())
