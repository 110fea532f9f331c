"""The kinds of voices, by the `model_type` in `config.json`; `files.KINDS` lists their names."""

from tts_compress.models.transformers.csm import CSM
from tts_compress.models.transformers.systems import SYSTEMS as _SYSTEMS
from tts_compress.models.transformers.systems import System

SYSTEMS: dict[str, System] = {**_SYSTEMS, "csm": CSM}
