"""Amphion's NaturalSpeech2: latent diffusion by a WaveNet, and EnCodec, run from a clone."""

from __future__ import annotations

from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.opening import open_naturalspeech2
from tts_compress.models.naturalspeech2.options import NS2Options

__all__ = [
    "NS2Options",
    "NaturalSpeech2Model",
    "open_naturalspeech2",
]
