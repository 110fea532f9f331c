"""Parler-TTS: a language model of codec tokens and its codec, run by the official package."""

from __future__ import annotations

from tts_compress.models.parler.model import DEFAULT_DESCRIPTION, ParlerModel
from tts_compress.models.parler.opening import open_parler

__all__ = ["DEFAULT_DESCRIPTION", "ParlerModel", "open_parler"]
