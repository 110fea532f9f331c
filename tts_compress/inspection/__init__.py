"""Components of a model, how it was made, where its time goes, and where it plays."""

from tts_compress.inspection.compatibility import (
    Verdict,
    check_runtime,
    verdict_document,
    verdict_lines,
)
from tts_compress.inspection.model import inspect_model, inspection_tables
from tts_compress.inspection.runtimes import runtime_names
from tts_compress.inspection.speed import speed_ratio
from tts_compress.inspection.times import can_be_timed, is_quick, time_shares

__all__ = [
    "Verdict",
    "can_be_timed",
    "check_runtime",
    "inspect_model",
    "inspection_tables",
    "is_quick",
    "runtime_names",
    "speed_ratio",
    "time_shares",
    "verdict_document",
    "verdict_lines",
]
