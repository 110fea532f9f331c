"""GPT-SoVITS: a language model of semantic tokens and a synthesizer, run from the user's clone."""

from tts_compress.families import Family
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS

__all__ = ["FAMILY"]

FAMILY = Family(
    name=GPT_SOVITS.family,
    opener="tts_compress.models.gpt_sovits.model:GptSovitsModel.open",
    location="CONFIG.yaml or T2S.ckpt,SOVITS.pth",
    extra=GPT_SOVITS.extra,
    upstream=GPT_SOVITS,
)
