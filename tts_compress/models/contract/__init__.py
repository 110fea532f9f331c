"""Voices that are a graph and a contract: a TOML that states how the graph is called."""

from tts_compress.families import Family

FAMILY = Family(
    name="contract",
    opener="tts_compress.models.language_voice:open_voice",
    location="the .onnx of a voice with a contract.toml beside it, or with the inputs of a "
    "shipped contract",
    suffixes=(".onnx",),
    recognizer="tts_compress.models.contract.reading:is_explained",
    extra="piper",
)
