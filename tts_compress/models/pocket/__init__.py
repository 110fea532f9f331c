"""Pocket-TTS: a language model of audio latents and its codec, run by the official package."""

from tts_compress.families import Family

FAMILY = Family(
    name="pocket-tts",
    opener="tts_compress.models.pocket.model:PocketModel.open",
    location="a release such as 'english', a directory, a configuration (.yaml) or a hub's name",
    extra="pocket-tts",
)
