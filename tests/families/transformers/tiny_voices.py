"""Tiny seeded voices with a processor of their own, saved as transformers saves them."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.tiny import make_tokenizer, redraw, write_voice

_PLACEHOLDERS = {
    "audio_bos_token": "<|audio_bos|>",
    "audio_prompt_token": "<|audio_prompt|>",
    "audio_latent_token": "<|audio_latent|>",
    "audio_prompt_bos_token": "<|audio_prompt_bos|>",
}
_TEMPLATE = (
    "{% for message in messages %}{% for item in message.content %}"
    "{{ BEGIN + audio_prompt_token if item.type == 'audio' else item.text }}"
    "{% endfor %}{{ audio_bos_token }}{% endfor %}"
)


def write_pocket(transformers: Any, directory: Path, kind: str = "PocketTTS") -> None:
    """Write a tiny Pocket-TTS or, of the kind `GradiumPhononTTS`, a tiny Phonon.

    The first has a recording beside it, the other latents of a speaker.
    """
    import torch

    torch.manual_seed(0)
    is_pocket = kind == "PocketTTS"
    named = list(_PLACEHOLDERS)[: None if is_pocket else 3]
    begin = "audio_prompt_bos_token" if is_pocket else "''"
    tokenizer = _tokenizer(
        transformers,
        {name: _PLACEHOLDERS[name] for name in named},
        _TEMPLATE.replace("BEGIN", begin),
    )
    flow = {"hidden_size": 32, "num_hidden_layers": 2, "frequency_embedding_size": 16}
    config = getattr(transformers, f"{kind}Config")(
        flow_head_config={**flow, "latent_dim": 8, "condition_dim": 64},
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        latent_dim=8,
        max_position_embeddings=512,
        frame_rate=3.0,
        **{f"{name}_id": tokenizer.convert_tokens_to_ids(_PLACEHOLDERS[name]) for name in named},
        **({} if is_pocket else {"audio_prompt_dim": 24, "duration_delta_embedding_dim": 16}),
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model.generation_config = transformers.GenerationConfig(do_sample=True, temperature=0.5)
    codec = transformers.PocketTTSAudioTokenizerModel(_codec(transformers)).eval()
    with torch.no_grad():
        for layer in (*model.modules(), *codec.modules()):
            redraw(layer)
        model.model.bos_latent.normal_()
        model.latent_std.fill_(0.5)
        model.eos_head.bias.fill_(-99)  # ends at the limit
        codec.decoder.decoder_seanet.layers[-1].conv.weight *= 0.2
    model.save_pretrained(directory)
    codec.save_pretrained(directory / "vocoder")
    features = transformers.PocketTTSFeatureExtractor(
        sampling_rate=2400, frame_size=16, pad_to_multiple_of=16
    )
    processor = transformers.PocketTTSProcessor(
        features, tokenizer, audio_tokenizer=codec, chat_template=tokenizer.chat_template
    )
    processor.save_pretrained(directory)
    if is_pocket:
        write_voice(directory / "reference.wav", seconds=0.6)
    else:
        speech = np.random.default_rng(0).normal(size=(5, 24))
        np.save(directory / "speaker.npy", speech.astype(np.float32))


def _tokenizer(transformers: Any, placeholders: dict[str, str], template: str) -> Any:
    """Return a tokenizer of characters and named placeholders, which ends no text."""
    import tokenizers

    plain = make_tokenizer(transformers, ("<s>", "<pad>", "</s>", "<unk>", *placeholders.values()))
    characters = plain.backend_tokenizer
    characters.post_processor = tokenizers.processors.TemplateProcessing(single="$A")
    characters.decoder = tokenizers.decoders.Fuse()
    settings = {name: getattr(plain, name) for name in ("pad_token", "unk_token")}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=characters,
        extra_special_tokens=placeholders,
        chat_template=template,
        **settings,
    )


def _codec(transformers: Any) -> Any:
    return transformers.PocketTTSAudioTokenizerConfig(
        hidden_size=64,
        num_filters=16,
        upsampling_ratios=[4, 2],
        upsample_groups=64,
        num_hidden_layers=1,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        latent_stride=2,
        latent_dim=8,
        sampling_rate=2400,
        sliding_window=20,
    )


_HIGGS = {
    "audio_token": "<|AUDIO_OUT|>",
    "audio_bos_token": "<|audio_out_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "audio_delay_token": "<|audio_delay|>",
}
_HIGGS_TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}{% for item in message.content %}"
    "{{ audio_bos_token + audio_token + audio_eos_token if item.type == 'audio' else item.text }}"
    "{% endfor %}{% endfor %}{{ audio_bos_token }}"
)


def write_higgs(transformers: Any, directory: Path) -> None:
    """Write a tiny Higgs Audio V2 with its codec, in which repeated tokens are drawn again."""
    import torch

    from tts_compress.models.stand_ins import offer_torchaudio

    offer_torchaudio()
    codecs = import_module(
        "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
    )
    torch.manual_seed(0)
    tokenizer = _tokenizer(transformers, _HIGGS, _HIGGS_TEMPLATE)
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in _HIGGS.items()}
    end = ids.pop("audio_eos_token_id")
    config = transformers.HiggsAudioV2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        num_codebooks=3,
        codebook_size=66,
        audio_stream_bos_id=64,
        audio_stream_eos_id=65,
        pad_token_id=1,
        eos_token_id=end,
        **ids,
    )
    model = transformers.HiggsAudioV2ForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, max_new_tokens=24, top_k=50, eos_token_id=end, pad_token_id=1
    )
    model.generation_config.ras_win_len = 7
    model.generation_config.ras_win_max_num_repeat = 1
    codec = codecs.HiggsAudioV2TokenizerModel(_higgs_codec(transformers)).eval()
    with torch.no_grad():
        for module in (*model.modules(), *codec.modules()):
            redraw(module)
            if hasattr(module, "embed_avg"):
                module.embed.normal_()
        codec.acoustic_decoder.conv2.weight *= 0.02
    model.save_pretrained(directory)
    codec.save_pretrained(directory / "vocoder")
    features = transformers.DacFeatureExtractor(sampling_rate=2400, hop_length=320)
    processor = transformers.HiggsAudioV2Processor(
        features,
        tokenizer,
        audio_tokenizer=None,
        chat_template=tokenizer.chat_template,
        audio_stream_bos_id=64,
        audio_stream_eos_id=65,
    )
    processor.audio_tokenizer = codec
    processor.save_pretrained(directory)


def _higgs_codec(transformers: Any) -> Any:
    semantic = {
        "model_type": "hubert",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "conv_dim": [16, 16, 16, 16],
        "conv_kernel": [10, 4, 4, 4],
        "conv_stride": [5, 4, 4, 4],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "num_feat_extract_layers": 4,
    }
    acoustic = {
        "model_type": "dac",
        "encoder_hidden_size": 8,
        "downsampling_ratios": [8, 8, 5],
        "decoder_hidden_size": 64,
        "upsampling_ratios": [8, 8, 5],
        "hidden_size": 32,
    }
    return transformers.HiggsAudioV2TokenizerConfig(
        acoustic_model_config=acoustic,
        semantic_model_config=semantic,
        sample_rate=2400,
        semantic_sample_rate=2400,
        downsample_factor=320,
        codebook_size=64,
        codebook_dim=16,
        target_bandwidths=[0.15],
    )


_VIBEVOICE = {
    "audio_token": "<|vision_pad|>",
    "audio_bos_token": "<|vision_start|>",
    "audio_eos_token": "<|vision_end|>",
    "end_token": "<|endoftext|>",
}
_VIBEVOICE_TEMPLATE = (
    "{% for message in messages %}{% for item in message.content %}"
    "{{ audio_bos_token + audio_token + audio_eos_token if item.type == 'audio' else item.text }}"
    "{% endfor %}{% endfor %}{{ audio_bos_token }}"
)


def write_vibevoice(transformers: Any, directory: Path) -> None:
    """Write a tiny VibeVoice, which speaks until it is stopped."""
    import torch

    torch.manual_seed(0)
    tokenizer = _tokenizer(transformers, _VIBEVOICE, _VIBEVOICE_TEMPLATE)
    ids = {f"{n}_id": tokenizer.convert_tokens_to_ids(token) for n, token in _VIBEVOICE.items()}
    end = ids.pop("end_token_id")
    sizes = {"downsampling_ratios": [2, 4], "depths": [1, 1, 1], "layer_scale_init_value": 0.5}
    sizes |= {"hidden_size": 8}
    text = {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
    }
    config = transformers.VibeVoiceConfig(
        text_config=text,
        diffusion_head_config={
            "num_hidden_layers": 2,
            "intermediate_size": 96,
            "frequency_embedding_size": 16,
        },
        audio_config={"model_type": "vibevoice_acoustic_tokenizer", "num_filters": 16, **sizes},
        semantic_model_config={
            "model_type": "vibevoice_acoustic_tokenizer_encoder",
            "num_filters": 8,
            **sizes,
        },
        pad_token_id=1,
        eos_token_id=end,
        **ids,
    )
    model = transformers.VibeVoiceForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=12, guidance_scale=1.3, eos_token_id=end, pad_token_id=1
    )
    model.generation_config.num_diffusion_steps = 3
    with torch.no_grad():
        for module in model.modules():
            redraw(module)
        # Of equal scores the first wins, which is that of sound.
        model.lm_head.weight[[*ids.values(), end]] = 0
        model.model.audio_tower.decoder.head.conv.weight *= 0.2
        # What it hears of itself moves it little: differences would grow from step to step.
        for part in (model.model.multi_modal_projector, model.model.semantic_connector):
            part.linear_2.weight *= 0.1
        head = model.model.diffusion_head
        for layer in (*(layer.linear for layer in head.layers), head.final_layer.linear_1):
            layer.weight *= 0.3
        head.final_layer.linear_2.weight *= 0.5
    model.save_pretrained(directory)
    features = transformers.VibeVoiceAcousticTokenizerFeatureExtractor(
        sampling_rate=2400, pad_to_multiple_of=8
    )
    transformers.VibeVoiceProcessor(
        features, tokenizer, chat_template=tokenizer.chat_template
    ).save_pretrained(directory)
