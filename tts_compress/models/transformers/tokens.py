"""Kinds of voices that are language models of a codec's tokens: Bark, CSM, Dia and Higgs."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tts_compress.errors import ModelError
from tts_compress.models.base import Objective
from tts_compress.models.torch_noise import noise_by_step
from tts_compress.models.transformers.voice import (
    System,
    Voice,
    count_steps,
    inputs_of,
    read_processor,
    read_recording,
    said,
    tokenize,
)

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


def _prepare_higgs(voice: Voice) -> Voice:
    if voice.prompt.audio is not None and voice.prompt.text is None:
        raise ModelError(
            f"it is not known what is said in '{voice.prompt.audio}'; put the words into "
            "reference.txt beside it, or give them with the recording"
        )
    processor = read_processor(voice, "HiggsAudioV2Processor")
    return replace(voice, processor=processor)


def _speak_higgs(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official `generate` and processor."""
    root, config, processor = voice.root, voice.root.config, voice.processor
    tokenize(voice, text, config.vocab_size, _positions(config))
    # As in the official examples, also that of a recording.
    conversation = [
        said("Generate audio following instruction.", "system"),
        said("Audio is recorded from a quiet room.", "scene"),
    ]
    if voice.prompt.audio is not None:
        rate = processor.feature_extractor.sampling_rate
        spoken = {"type": "audio", "audio": read_recording(voice.prompt.audio, rate)}
        conversation += said(str(voice.prompt.text)), {"role": "assistant", "content": [spoken]}
    inputs = inputs_of(voice, [*conversation, said(text)], add_generation_prompt=True)
    steps = count_steps(voice, text, inputs, _positions(config), 2 * config.num_codebooks)
    with noise_by_step(root):
        codes = root.generate(**inputs, max_new_tokens=steps, return_dict_in_generate=False)
    samples: Tensor = processor.decode(codes)
    return samples.reshape(-1)


_HIGGS_CODEC = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
HIGGS = System(
    class_name="HiggsAudioV2ForConditionalGeneration",
    vocoder=f"{_HIGGS_CODEC}.HiggsAudioV2TokenizerModel",
    roles={
        "model.embed_tokens": "text embedding",
        "model.embed_audio_tokens": "tables of the codebooks",
        "model.layers": "language model of all codebooks",
        "audio_lm_head": "heads of all codebooks",
        "vocoder.quantizer": "codec's codes",
        "vocoder.fc2": "projection of codes to the codec's decoder",
        "vocoder.acoustic_decoder": "codec's decoder",
        "vocoder.acoustic_encoder": "codec's encoder, for recordings",
        "vocoder.semantic_model": "codec's encoder, for recordings: HuBERT",
        "vocoder.encoder_semantic": "codec's encoder, for recordings: after HuBERT",
        "vocoder.fc": "codec's encoder, for recordings: projection",
        "vocoder.decoder_semantic": "semantic decoder (only for training)",
        "vocoder.fc1": "semantic decoder (only for training): projection",
    },
    objectives=(Objective(module="vocoder.acoustic_decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("", 24_000),
    prepare=_prepare_higgs,
    speak=_speak_higgs,
)
"""Higgs Audio V2: a language model with layers for text and for sound (Boson AI, 2025)."""
