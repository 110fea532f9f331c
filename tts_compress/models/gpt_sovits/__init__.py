"""GPT-SoVITS: a language model of semantic tokens and a synthesizer, run from the user's clone."""

from __future__ import annotations

from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.models.gpt_sovits.opening import open_gpt_sovits

__all__ = ["GptSovitsModel", "open_gpt_sovits"]
