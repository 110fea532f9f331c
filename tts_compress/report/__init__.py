"""What an evaluation found, for machines and for people."""

from tts_compress.report.console import summary_table
from tts_compress.report.reader import read_report
from tts_compress.report.summary import Row, summary_rows
from tts_compress.report.writer import write_report

__all__ = ["Row", "read_report", "summary_rows", "summary_table", "write_report"]
