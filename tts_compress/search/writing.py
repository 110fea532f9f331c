"""Files of sensitivity and search in their folder."""

from pathlib import Path

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import MissingExtraError
from tts_compress.search.outcome import SEARCH_NAME, SearchResult
from tts_compress.search.result import SENSITIVITY_NAME, Sensitivity


def write_sensitivity(found: Sensitivity, folder: Path) -> Path:
    """Write `sensitivity.json` and `sensitivity.html`; return the page.

    Raises:
        MissingExtraError: The page needs jinja2 and matplotlib; the document is written.
        ArtifactError: The folder cannot be written.
    """
    write_text_atomically(folder / SENSITIVITY_NAME, found.to_json())
    try:
        from tts_compress.search.page import sensitivity_page
    except ImportError as error:
        raise MissingExtraError(error.name or "jinja2", "evaluate") from error
    page = folder / "sensitivity.html"
    write_text_atomically(page, sensitivity_page(found))
    return page


def write_search(found: SearchResult, folder: Path) -> Path:
    """Write `search.json` and `search.html`; return the page.

    Raises:
        MissingExtraError: The page needs jinja2 and matplotlib; the document is written.
        ArtifactError: The folder cannot be written.
    """
    write_text_atomically(folder / SEARCH_NAME, found.to_json())
    try:
        from tts_compress.search.page import search_page
    except ImportError as error:
        raise MissingExtraError(error.name or "jinja2", "evaluate") from error
    page = folder / "search.html"
    write_text_atomically(page, search_page(found))
    return page
