"""The voices of the package `transformers`, run by its own classes."""

from tts_compress.families import Family

FAMILY = Family(
    name="transformers",
    opener="tts_compress.models.transformers.model:open_voice",
    location="a directory or a hub's name",
    extra="transformers-tts",
)
