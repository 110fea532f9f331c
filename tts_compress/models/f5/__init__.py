"""F5-TTS: a flow-matching transformer and a Vocos vocoder, run by the official package."""

from tts_compress.families import Family

FAMILY = Family(
    name="f5-tts",
    opener="tts_compress.models.f5.model:F5Model.open",
    location="a directory, or a name of the package such as F5TTS_v1_Base",
    extra="f5",
)
