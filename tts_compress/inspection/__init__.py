"""Components of a model, how it was made, and where its time goes."""

from tts_compress.inspection.model import inspect_model, inspection_tables
from tts_compress.inspection.speed import speed_ratio
from tts_compress.inspection.times import can_be_timed, is_quick, time_shares

__all__ = [
    "can_be_timed",
    "inspect_model",
    "inspection_tables",
    "is_quick",
    "speed_ratio",
    "time_shares",
]
