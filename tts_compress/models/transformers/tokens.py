"""Kinds of voices that are language models of a codec's tokens: Bark, CSM and Dia."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tts_compress.errors import ModelError
from tts_compress.models.base import Objective
from tts_compress.models.transformers.voice import System, Voice, tokenize

_MAX_BARK_TOKENS = 256  # what the official configuration says where nothing is stated


def _speak_bark(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official processor and `generate`."""
    import transformers

    stated = _semantic_settings(voice.root)
    longest = int(stated.get("max_input_semantic_length", _MAX_BARK_TOKENS))
    rows = int(voice.root.semantic.config.input_vocab_size) - int(
        stated.get("text_encoding_offset", 10_048)
    )
    # Refused here: the official code cuts off what is too long, without a word.
    tokenize(voice, text, rows, longest, add_special_tokens=False)
    processor = transformers.BarkProcessor(voice.tokenizer)
    preset = voice.source.read_preset()
    inputs = dict(processor(text, voice_preset=preset, max_length=longest))
    history = inputs.pop("history_prompt", None)
    if preset is not None:
        history = {name: torch.as_tensor(values) for name, values in history.items()}
    inputs = tree_map_only(
        Tensor, lambda x: x.to(voice.root.device), inputs | {"history_prompt": history}
    )
    waveform: Tensor = voice.root.generate(**inputs)
    return waveform.reshape(-1)


def _semantic_settings(root: Any) -> dict[str, Any]:
    settings = getattr(root.generation_config, "semantic_config", None)
    if not isinstance(settings, dict):
        raise ModelError(
            "the model has no generation_config.json with 'semantic_config'; fetch it again"
        )
    return settings


BARK = System(
    class_name="BarkModel",
    roles={
        "semantic": "language model of the text's tokens",
        "coarse_acoustics": "language model of the first codebooks",
        "fine_acoustics": "predictor of the other codebooks",
        "codec_model": "audio codec",
    },
    objectives=(Objective(module="codec_model.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("codec_config", 24_000),
    speak=_speak_bark,
)
"""Bark: three language models of tokens, one behind the other, and EnCodec (Suno, 2023)."""


def _speak_csm(voice: Voice, text: str) -> Tensor:
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
    speak=_speak_csm,
)
"""CSM: a language model of the first codebook, one of the others, and Mimi (Sesame, 2025)."""


def _speak_dia(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, said by the first speaker, by the official processor."""
    import transformers

    root, config = voice.root, voice.root.config
    said = f"[S1] {text}"
    tokenize(voice, said, config.encoder_config.vocab_size, _positions(config.encoder_config))
    settings, room = root.generation_config, _positions(config.decoder_config)
    longest = settings.max_new_tokens or settings.max_length
    if not longest or not longest + max(config.delay_pattern) < room:
        raise ModelError(
            f"the model has max_length {longest!r} in its generation_config.json; give a number "
            f"below its {room} positions, less the delay of the last codebook"
        )
    special = {
        f"{name}_token_id": getattr(config.decoder_config, f"{name}_token_id")
        for name in ("bos", "eos", "pad")
    }
    audio = {**special, "delay_pattern": config.delay_pattern}
    features = transformers.DiaFeatureExtractor(sampling_rate=root.vocoder.config.sampling_rate)
    processor = transformers.DiaProcessor(features, voice.tokenizer, root.vocoder)
    inputs = processor(text=[said], **audio).to(root.device)
    samples: Tensor = processor.decode(root.generate(**inputs), **audio)
    return samples.reshape(-1)


def _positions(config: Any) -> int:
    return int(config.max_position_embeddings)


DIA = System(
    class_name="DiaForConditionalGeneration",
    vocoder="DacModel",
    roles={
        "model.encoder": "text encoder",
        "model.decoder": "language model of all codebooks",
        "logits_dense": "heads of all codebooks",
        "vocoder": "audio codec",
    },
    objectives=(Objective(module="vocoder.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("", 44_100),
    speak=_speak_dia,
)
"""Dia: a text encoder, one language model of nine codebooks, and DAC (Nari Labs, 2025)."""
