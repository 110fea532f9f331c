"""Components of a model, how it was made, where its time goes, and where it plays."""

from tts_compress.inspection.check import (
    RuntimeVerdict,
    check_runtime,
    verdict_document,
    verdict_lines,
)
from tts_compress.inspection.components import (
    can_be_timed,
    inspect_model,
    inspection_tables,
    is_quick,
    speed_ratio,
    time_shares,
)
from tts_compress.inspection.runtimes import runtime_names

__all__ = [
    "RuntimeVerdict",
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
