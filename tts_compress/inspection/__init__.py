"""Components of a model, how it was made, where its time goes, and where it plays."""

from tts_compress.inspection.check import check_runtime as check_runtime
from tts_compress.inspection.check import verdict_lines as verdict_lines
from tts_compress.inspection.components import can_be_timed as can_be_timed
from tts_compress.inspection.components import inspect_model as inspect_model
from tts_compress.inspection.components import inspection_tables as inspection_tables
from tts_compress.inspection.components import is_quick as is_quick
from tts_compress.inspection.components import speed_ratio as speed_ratio
from tts_compress.inspection.components import time_shares as time_shares
from tts_compress.inspection.runtimes import runtime_names as runtime_names
