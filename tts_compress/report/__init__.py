"""Reports of evaluations: for machines, for a job summary, for a browser and for the terminal."""

from pathlib import Path

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import ArtifactError
from tts_compress.evaluation import Evaluation
from tts_compress.evaluation.result import REPORT_NAME
from tts_compress.report.html import render_html
from tts_compress.report.markdown import render_markdown
from tts_compress.report.tables import summary_rows, summary_table

__all__ = ["render_html", "render_markdown", "summary_rows", "summary_table", "write_report"]


def write_report(evaluation: Evaluation, directory: Path | str) -> Path:
    """Write `report.json`, `report.md` and `report.html`; return the directory.

    The measurements are on disk before the page is drawn: a missing extra does not lose them.

    Raises:
        ArtifactError: The directory cannot be made or written.
        MissingExtraError: The page needs jinja2 and matplotlib; the other two files are written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(f"cannot make the directory '{directory}': {reason}") from error
    write_text_atomically(directory / REPORT_NAME, evaluation.to_json())
    write_text_atomically(directory / "report.md", render_markdown(evaluation))
    write_text_atomically(directory / "report.html", render_html(evaluation))
    return directory
