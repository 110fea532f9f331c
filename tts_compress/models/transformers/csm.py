"""CSM: a language model of the first codebook, one of the others, and Mimi (Sesame, 2025)."""

from torch import Tensor

from tts_compress.errors import ModelError
from tts_compress.models.base import Objective
from tts_compress.models.transformers.systems import System, Voice, tokenize


def _speak(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, said by the first speaker, by the official `generate`."""
    config, longest = voice.root.config, voice.root.generation_config.max_new_tokens
    room = int(config.max_position_embeddings) - (longest or 0)
    if not longest or room < 1:
        raise ModelError(
            f"the model has max_new_tokens {longest!r} in its generation_config.json; give a "
            f"number below its {config.max_position_embeddings} positions"
        )
    inputs = tokenize(voice, f"[0]{text}", int(config.text_vocab_size), room)
    others = int(config.num_codebooks) - 1
    spoken: list[Tensor] = voice.root.generate(
        **inputs,
        output_audio=True,
        depth_decoder_min_new_tokens=others,
        depth_decoder_max_new_tokens=others,
    )
    return spoken[0].reshape(-1)


CSM = System(
    class_name="CsmForConditionalGeneration",
    roles={
        "embed_text_tokens": "text embedding",
        "backbone_model": "language model of the first codebook",
        "lm_head": "head of the first codebook",
        "depth_decoder": "language model of the other codebooks",
        "codec_model": "audio codec",
    },
    objectives=(Objective(module="codec_model.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("codec_config", 24_000),
    speak=_speak,
)
