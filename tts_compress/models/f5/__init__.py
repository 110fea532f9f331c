"""F5-TTS: a flow-matching transformer and a Vocos vocoder, run by the official package."""

from __future__ import annotations

from tts_compress.models.f5.model import F5Model
from tts_compress.models.f5.opening import open_f5
from tts_compress.models.f5.options import F5Options

__all__ = ["F5Model", "F5Options", "open_f5"]
