"""The headline measurements of an evaluation as HTML, for a cell of a notebook."""

from tts_compress.evaluation.result import Evaluation
from tts_compress.plain import html_table
from tts_compress.report.summary import cautions, summary_rows, verdict


def evaluation_table(evaluation: Evaluation) -> str:
    """Return a table of what the terminal shows, with the verdict and cautions above it."""
    header = ("Measurement", "Reference", "Compressed", "Change")
    rows = [(r.label, r.reference, r.candidate, r.change) for r in summary_rows(evaluation)]
    return html_table(header, rows, " ".join([verdict(evaluation), *cautions(evaluation)]))
