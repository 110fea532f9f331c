"""Parler-TTS: a language model of codec tokens and its codec, run by the official package."""

from tts_compress.families import Family

FAMILY = Family(
    name="parler-tts",
    opener="tts_compress.models.parler.model:ParlerModel.open",
    location="a directory or a hub's name",
    extra="parler",
)
