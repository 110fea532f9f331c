"""The networks, built by their own packages at published sizes, and one call of each."""

import importlib
from typing import Any

import torch
from torch import nn

from benchmarks.networks.network import Network, Step, network
from tts_compress.torch.devices import device_of


@network(
    "dit",
    "f5-tts",
    "F5-TTS v1 Base: one step of the diffusion transformer, 2 × 600 frames (guidance)",
)
def _dit() -> Network:
    from tts_compress.models.f5.network import official
    from tts_compress.models.pretrained import quiet

    kind = official("f5_tts.model").DiT
    arch: dict[str, Any] = {"dim": 1024, "depth": 22, "heads": 16, "ff_mult": 2, "text_dim": 512}
    arch |= {"text_mask_padding": True, "conv_layers": 4, "pe_attn_head": None}
    arch |= {"attn_backend": "torch", "attn_mask_enabled": False}

    def make() -> nn.Module:
        with quiet():
            return nn.ModuleDict({"transformer": kind(**arch, text_num_embeds=2545, mel_dim=100)})

    inputs = {
        "x": torch.randn(1, 600, 100),
        "cond": torch.randn(1, 600, 100),
        "text": torch.randint(0, 2000, (1, 120)),
        "time": torch.tensor(0.3),
        "mask": torch.ones(1, 600, dtype=torch.bool),
    }

    def call(root: Any) -> Step:
        transformer = root["transformer"]
        transformer.clear_cache()  # of the text's embedding, which the first step fills
        device = device_of(root)
        given = {name: value.to(device) for name, value in inputs.items()}
        return lambda: transformer(**given, cfg_infer=True, cache=True)

    return Network(make=make, call=call, called=("transformer",))


@network("vocos", "f5-tts", "Vocos 24 kHz: 600 frames, 6.4 s of audio")
def _vocos() -> Network:
    from tts_compress.models.f5.network import official

    official("vocos")
    models, heads = (importlib.import_module(f"vocos.{name}") for name in ("models", "heads"))

    def make() -> nn.Module:
        backbone = models.VocosBackbone(100, 512, 1536, 8)
        parts = {"backbone": backbone, "head": heads.ISTFTHead(512, 1024, 256)}
        return nn.ModuleDict({"vocoder": nn.ModuleDict(parts)})

    mel = torch.randn(1, 100, 600)

    def call(root: Any) -> Step:
        vocoder = root["vocoder"]
        return lambda: vocoder["head"](vocoder["backbone"](mel))

    return Network(make=make, call=call)


@network(
    "parler-decoder",
    "parler-tts",
    "Parler-TTS mini: one step of the decoder, batch 1, 100 steps in the cache",
)
def _parler_decoder() -> Network:
    from tts_compress.models.parler.model import find_tables, load_packages

    parler, transformers = load_packages()
    transformers.logging.set_verbosity_error()
    config = parler.ParlerTTSDecoderConfig(
        vocab_size=1088,
        max_position_embeddings=4096,
        num_hidden_layers=24,
        ffn_dim=4096,
        num_attention_heads=16,
        hidden_size=1024,
        num_codebooks=9,
        pad_token_id=1024,
        eos_token_id=1024,
        bos_token_id=1025,
    )
    config._attn_implementation = "sdpa"  # noqa: SLF001  what from_pretrained chooses
    caches = transformers.cache_utils
    described = torch.randn(1, 40, 1024)
    prompt, token = torch.randint(0, 1024, (9, 100)), torch.randint(0, 1024, (9, 1))

    def make() -> nn.Module:
        decoder = nn.ModuleDict({"decoder": parler.ParlerTTSForCausalLM(config)})
        for table in find_tables(decoder):
            table.fill()  # as in an artifact, whose file does not hold it
        return decoder

    def call(root: Any) -> Step:
        decoder = root["decoder"]
        shared = {"encoder_hidden_states": described, "use_cache": True}
        cache = caches.EncoderDecoderCache(caches.DynamicCache(), caches.DynamicCache())
        positions, at = torch.arange(100), torch.tensor([100])
        decoder(input_ids=prompt, past_key_values=cache, cache_position=positions, **shared)

        def step() -> torch.Tensor:
            cache.self_attention_cache.crop(100)
            output = decoder(input_ids=token, past_key_values=cache, cache_position=at, **shared)
            logits: torch.Tensor = output.logits
            return logits

        return step

    return Network(make=make, call=call)


@network("dac", "parler-tts", "DAC 44.1 kHz: decoding 172 frames, 2 s of audio")
def _dac() -> Network:
    from tts_compress.models.parler.model import load_packages

    parler, _ = load_packages()
    config = parler.DACConfig(
        num_codebooks=9,
        model_bitrate=8,
        codebook_size=1024,
        latent_dim=1024,
        frame_rate=86,
        sampling_rate=44100,
    )

    def make() -> nn.Module:
        return nn.ModuleDict({"audio_encoder": parler.DACModel(config)})

    codes = torch.randint(0, 1024, (1, 1, 9, 172))

    def call(root: Any) -> Step:
        return lambda: root["audio_encoder"].decode(codes, audio_scales=[None])[0]

    def blocks(root: Any) -> list[nn.Module]:
        return list(root["audio_encoder"].model.decoder.model.children())

    return Network(make=make, call=call, blocks=blocks)


@network(
    "vits", "transformers", "VITS as VitsConfig() has it: 100 tokens, 3.2 s of audio at 16 kHz"
)
def _vits() -> Network:
    import transformers

    from tts_compress.models.torch_noise import paired_noise

    ids = torch.randint(1, 38, (1, 100))

    def call(root: Any) -> Step:
        # Two frames for each token: of random weights a rounded duration would say nothing.
        root.duration_predictor.register_forward_hook(lambda *call: torch.full_like(call[2], 0.5))

        def speak() -> torch.Tensor:
            with paired_noise(0):
                waveform: torch.Tensor = root(input_ids=ids).waveform
            return waveform

        return speak

    def make() -> nn.Module:
        vits: Any = transformers.VitsModel(transformers.VitsConfig())
        with torch.no_grad():
            vits.decoder.conv_post.weight *= 0.003  # of random weights, which would clip
        return vits  # type: ignore[no-any-return]

    return Network(make=make, call=call)
