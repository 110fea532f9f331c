"""The files of a sensitivity analysis and of a search."""

from pathlib import Path

from tts_compress.artifact import write_text_atomically
from tts_compress.report import write_document
from tts_compress.search.outcome import SearchResult, Sensitivity


def write_result(found: Sensitivity | SearchResult, folder: Path) -> Path:
    """Write `sensitivity` or `search`, as `.json` and `.html`; return the page.

    Raises:
        MissingExtraError: The page needs jinja2 and matplotlib; the document is written.
        ArtifactError: The folder cannot be written.
    """
    stem = "search" if isinstance(found, SearchResult) else "sensitivity"
    write_document(
        found,
        (f"{stem}.html", f"tts_compress.search.page:{stem}_page"),
        {f"{stem}.json": found.to_json()},
        lambda name, text: write_text_atomically(folder / name, text),
    )
    return folder / f"{stem}.html"
