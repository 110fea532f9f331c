"""Reports of evaluations: for machines, for a job summary, for a browser and for the terminal."""

from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import needing
from tts_compress.evaluation import Evaluation
from tts_compress.evaluation.metric import Document
from tts_compress.evaluation.result import REPORT_NAME
from tts_compress.folders import make_directory
from tts_compress.report.markdown import render_markdown
from tts_compress.report.summary import summary_rows, summary_table

LISTENING_NAME = "listening-test.html"

_PAGE = "tts_compress.report.html:render_page"
_LISTENING_PAGE = "tts_compress.report.pages:render_listening_page"

__all__ = [
    "render_html",
    "render_markdown",
    "summary_rows",
    "summary_table",
    "write_document",
    "write_report",
]


def render_html(evaluation: Evaluation) -> str:
    """Return the page; the same evaluation gives the same bytes.

    Raises:
        MissingExtraError: jinja2, matplotlib or jiwer is not installed.
    """
    return render_document(_PAGE, evaluation)


def render_document(function: str, document: Document) -> str:
    """Return the page of a document by a function, `MODULE:NAME`, that is imported only now.

    Raises:
        MissingExtraError: A package of its module is not installed.
    """
    with needing("evaluate"):
        render: Callable[[Document], str] = resolve_name(function)
    return render(document)


def write_document(
    document: Document,
    page: tuple[str, str],
    texts: Mapping[str, str],
    write: Callable[[str, str], object],
) -> None:
    """Write a document's page, then its other files, also where the page cannot be rendered.

    Args:
        document: The document.
        page: The page's name, and the function that renders it, `MODULE:NAME`.
        texts: The other files by name. The last one is the document: where it is, the others are,
            too, whenever the program was killed.
        write: Writes a text under a name.

    Raises:
        ArtifactError: A file cannot be written.
        MissingExtraError: A package of the page is not installed; the other files are written.
    """
    name, function = page
    try:
        write(name, render_document(function, document))
    finally:
        for other, text in texts.items():
            write(other, text)


def write_report(evaluation: Evaluation, directory: Path | str) -> Path:
    """Write `report.json`, `report.md` and `report.html`; return the directory.

    The page of a listening test is there first, where one was asked for.

    Raises:
        ArtifactError: The directory cannot be made or written.
        MissingExtraError: The page needs jinja2 and matplotlib; the other two files are written.
    """
    directory = Path(directory)
    make_directory(directory)
    if evaluation.listening is not None:
        page = render_document(_LISTENING_PAGE, evaluation.listening)
        write_text_atomically(directory / LISTENING_NAME, page)
    write_document(
        evaluation,
        ("report.html", _PAGE),
        {"report.md": render_markdown(evaluation), REPORT_NAME: evaluation.to_json()},
        lambda name, text: write_text_atomically(directory / name, text),
    )
    return directory
