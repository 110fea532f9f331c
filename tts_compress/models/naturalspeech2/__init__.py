"""Amphion's NaturalSpeech2: latent diffusion by a WaveNet, and EnCodec, run from a clone."""

from tts_compress.families import Family
from tts_compress.models.naturalspeech2.upstream import AMPHION

__all__ = ["FAMILY"]

FAMILY = Family(
    name=AMPHION.family,
    opener="tts_compress.models.naturalspeech2.model:NaturalSpeech2Model.open",
    location="a checkpoint's directory",
    extra=AMPHION.extra,
    upstream=AMPHION,
)
