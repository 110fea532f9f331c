"""Kinds of voices that are language models of a codec's tokens: Bark, CSM, Dia and Higgs."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_map_only

from tts_compress.errors import ModelError
from tts_compress.models.base import Objective
from tts_compress.models.torch_noise import noise_by_step
from tts_compress.models.transformers.voice import (
    System,
    TokenKind,
    Voice,
    count_steps,
    inputs_of,
    read_processor,
    read_recording,
    said,
    tokenize,
)


def _read_again(module: str) -> Objective:
    """Return the objective of a language model that reads what it said."""
    return Objective(module=module, loss="mse", outputs=(0,), reads=True)


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


def _beginning_with_zeros(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rows[:1]), rows])


def _ids_csm(voice: Voice, text: str) -> dict[str, Tensor]:
    """Return the official inputs of a text that the first speaker says."""
    config, longest = voice.root.config, voice.root.generation_config.max_new_tokens
    room = int(config.max_position_embeddings) - (longest or 0)
    if not longest or room < 1:
        raise ModelError(
            f"the model has max_new_tokens {longest!r} in its generation_config.json; give a "
            f"number below its {config.max_position_embeddings} positions"
        )
    return tokenize(voice, f"[0]{text}", int(config.text_vocab_size), room)


def _generate_csm(voice: Voice, text: str) -> tuple[Tensor, Tensor]:
    """Return the tokens and the samples of a text by the official `generate`."""
    others = int(voice.root.config.num_codebooks) - 1
    spoken = voice.root.generate(
        **_ids_csm(voice, text),
        output_audio=True,
        return_dict_in_generate=True,
        depth_decoder_min_new_tokens=others,
        depth_decoder_max_new_tokens=others,
    )
    return _beginning_with_zeros(spoken.sequences[0]), spoken.audio[0].reshape(-1)


def _read_csm(voice: Voice, text: str, rows: Tensor) -> Tensor:
    root, steps = voice.root, len(rows) - 1
    read = root.embed_text_tokens(_ids_csm(voice, text)["input_ids"])
    read = torch.cat([read, root.backbone_model.embed_tokens(rows[None, 1:-1])], dim=1)
    heard = root(inputs_embeds=read, use_cache=False, output_hidden_states=True)
    others = root.depth_decoder(
        input_ids=pad(rows[1:, :-1], (1, 0)),  # the state stands in the place of the first
        backbone_last_hidden_state=heard.hidden_states[-1][0, -steps:],
        use_cache=False,
    )
    return torch.cat([heard.logits[0, -steps:, None], others.logits], dim=1)


CSM = System(
    class_name="CsmForConditionalGeneration",
    roles={
        "embed_text_tokens": "text embedding",
        "backbone_model": "language model of the first codebook",
        "lm_head": "head of the first codebook",
        "depth_decoder": "language model of the other codebooks",
        "codec_model": "audio codec",
    },
    objectives=(
        _read_again("backbone_model"),
        Objective(module="depth_decoder", loss="kl"),
        Objective(module="codec_model.decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate("codec_config", 24_000),
    tokens=TokenKind(
        generate=_generate_csm,
        read=_read_csm,
        special=lambda config: (config.codebook_eos_token_id, config.codebook_pad_token_id),
    ),
    speak=lambda voice, text: _generate_csm(voice, text)[1],
)
"""CSM: a language model of the first codebook, one of the others, and Mimi (Sesame, 2025)."""


def _open_dia(voice: Voice, text: str) -> tuple[Any, dict[str, Any], Any]:
    """Return the official processor, its settings, and what the first speaker says by it."""
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
    return processor, audio, processor(text=[said], **audio).to(root.device)


def _generate_dia(voice: Voice, text: str) -> tuple[Tensor, Tensor]:
    """Return the tokens and the samples of a text by the official processor."""
    processor, audio, inputs = _open_dia(voice, text)
    rows: Tensor = voice.root.generate(**inputs)
    samples: Tensor = processor.decode(rows, **audio)
    return rows[0], samples.reshape(-1)


def _read_dia(voice: Voice, text: str, rows: Tensor) -> Tensor:
    inputs = _open_dia(voice, text)[2]
    heard = voice.root(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=rows[None, :-1].contiguous(),  # which the official code takes for granted
        use_cache=False,
    )
    scores: Tensor = heard.logits.transpose(0, 1)
    return scores


def _special_dia(config: Any) -> tuple[int, ...]:
    settings = config.decoder_config
    return settings.eos_token_id, settings.bos_token_id, settings.pad_token_id


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
    objectives=(
        Objective(module="model.encoder", loss="mse", outputs=(0,)),
        _read_again("model.decoder"),
        Objective(module="vocoder.decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate("", 44_100),
    tokens=TokenKind(generate=_generate_dia, read=_read_dia, special=_special_dia),
    speak=lambda voice, text: _generate_dia(voice, text)[1],
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


def _inputs_higgs(voice: Voice, text: str) -> Any:
    """Return the official inputs of a text, after a recording and its words if there is one."""
    config, processor = voice.root.config, voice.processor
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
    return inputs_of(voice, [*conversation, said(text)], add_generation_prompt=True)


def _generate_higgs(voice: Voice, text: str) -> tuple[Tensor, Tensor]:
    """Return the tokens and the samples of a text by the official `generate` and processor."""
    root, config, inputs = voice.root, voice.root.config, _inputs_higgs(voice, text)
    steps = count_steps(voice, text, inputs, _positions(config), 2 * config.num_codebooks)
    with noise_by_step(root):
        codes: Tensor = root.generate(**inputs, max_new_tokens=steps, return_dict_in_generate=False)
    samples: Tensor = voice.processor.decode(codes)
    heard = inputs["audio_input_ids"].shape[1] if "audio_input_ids" in inputs else 0
    return _beginning_with_zeros(codes[0, heard:]), samples.reshape(-1)


def _read_higgs(voice: Voice, text: str, rows: Tensor) -> Tensor:
    root, steps, read = voice.root, len(rows) - 1, rows[None, 1:-1]
    inputs = dict(_inputs_higgs(voice, text))
    ids, mask = inputs["input_ids"], read.new_ones(read.shape[:2])
    inputs["input_ids"] = torch.cat([ids, mask * root.config.audio_token_id], dim=1)
    for name, more in {
        "attention_mask": mask,
        "audio_input_ids": read,
        "audio_input_ids_mask": mask.bool(),
    }.items():
        inputs[name] = torch.cat([inputs[name], more], dim=1) if name in inputs else more
    heard = root(**inputs, use_cache=False).logits[0, -steps:]
    scores: Tensor = heard.reshape(steps, rows.shape[1], -1)
    return scores


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
    objectives=(
        _read_again("model"),
        Objective(module="vocoder.acoustic_decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate("", 24_000),
    tokens=TokenKind(
        generate=_generate_higgs,
        read=_read_higgs,
        special=lambda config: (config.audio_stream_eos_id, config.audio_stream_bos_id),
    ),
    prepare=_prepare_higgs,
    speak=lambda voice, text: _generate_higgs(voice, text)[1],
)
"""Higgs Audio V2: a language model with layers for text and for sound (Boson AI, 2025)."""
