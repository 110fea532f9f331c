"""Tiny seeded Parler-TTS models in the official directory format."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.families.tiny import make_tokenizer
from tts_compress.models.parler.model import ParlerModel, load_packages
from tts_compress.models.pretrained import quiet

_CODEBOOKS = 9
_CODES = 64


@pytest.fixture(scope="session")
def make_parler_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a tiny model; keyword arguments change its configuration."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if importlib.util.find_spec("parler_tts") is None:
        pytest.skip("parler-tts is not installed")
    parler, transformers = load_packages()
    torch.set_num_threads(1)  # networks this small only wait for a second one

    def make(name: str, *, codec: Any = None, **changes: Any) -> Path:
        torch.manual_seed(0)
        cross, width = changes.pop("cross", False), changes.pop("encoder_width", 32)
        codec = codec or transformers.DacConfig(
            encoder_hidden_size=8,
            downsampling_ratios=[2, 4, 8, 8],
            decoder_hidden_size=32,
            n_codebooks=_CODEBOOKS,
            codebook_size=_CODES,
            codebook_dim=8,
            sampling_rate=44100,
        )
        specials = {
            "pad_token_id": codec.codebook_size,
            "eos_token_id": codec.codebook_size,
            "bos_token_id": codec.codebook_size + 1,
        }
        decoder = parler.ParlerTTSDecoderConfig(
            vocab_size=codec.codebook_size + 1,
            max_position_embeddings=256,
            num_hidden_layers=2,
            ffn_dim=64,
            num_attention_heads=4,
            hidden_size=changes.pop("decoder_width", 32),
            num_codebooks=_CODEBOOKS,
            dropout=0.0,
            **specials | changes,
        )
        encoder = transformers.T5Config(
            vocab_size=128, d_model=width, d_kv=8, d_ff=64, num_layers=2, num_heads=4
        )
        config = parler.ParlerTTSConfig.from_sub_models_config(
            encoder, codec, decoder, vocab_size=128, prompt_cross_attention=cross
        )
        with quiet():
            model = parler.ParlerTTSForConditionalGeneration(config).eval()
            _make_expressive(model)
            model.generation_config = transformers.GenerationConfig(
                do_sample=True,
                temperature=1.0,
                max_length=40,
                min_new_tokens=12,
                decoder_start_token_id=codec.codebook_size + 1,
                **specials,
            )
            directory = tmp_path_factory.mktemp("parler") / name
            model.save_pretrained(directory)
        make_tokenizer(transformers, ("<pad>", "</s>", "<unk>")).save_pretrained(directory)
        (directory / "description.txt").write_text("a calm low voice\n", encoding="utf-8")
        return directory

    return make


@pytest.fixture(scope="session")
def tiny_parler_dir(make_parler_dir: Callable[..., Path]) -> Path:
    """Return the folder of a model of half a million weights; do not write into it."""
    return make_parler_dir("tiny")


@pytest.fixture(scope="session")
def tiny_parler(tiny_parler_dir: Path) -> ParlerModel:
    """Return that model, loaded; it is never modified."""
    return ParlerModel.open(str(tiny_parler_dir), f"parler-tts:{tiny_parler_dir}")


def _make_expressive(model: Any) -> None:
    """Enlarge seeded weights until every layer is audible and tokens depend on each other."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for module in model.decoder.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                module.weight.normal_(0, 0.3)
        model.embed_prompts.weight.normal_(0, 0.3)
        _make_audible(model.audio_encoder)


def _make_audible(codec: Any) -> None:
    """Draw the codec's convolutions, and scale the last so that its output does not clip."""
    import torch

    convolutions = torch.nn.Conv1d | torch.nn.ConvTranspose1d
    for module in codec.modules():
        if isinstance(module, convolutions):
            fan_in = module.in_channels * module.kernel_size[0] / module.stride[0]
            module.weight = module.weight.normal_(0, fan_in**-0.5)
    wrapped = codec.config.model_type == "dac_on_the_hub"
    last = codec.model.decoder.model[-2] if wrapped else codec.decoder.conv2
    levels: list[float] = []
    hook = last.register_forward_hook(
        lambda _module, _inputs, found: levels.append(float(found.square().mean().sqrt()))
    )
    codes = torch.randint(_CODES, (1, _CODEBOOKS, 20))
    if wrapped:
        codec.decode(codes.unsqueeze(0), [None])
    else:
        codec.decode(audio_codes=codes)
    hook.remove()
    weight = last.weight
    weight *= 0.2 / levels[0]
    last.weight = weight


@pytest.fixture(scope="session")
def wrapped_dir(make_parler_dir: Callable[..., Path]) -> Iterator[Path]:
    """Return a model with the older codec, whose network is full-size by design: 250 MB."""
    parler, _ = load_packages()
    codec = parler.DACConfig(num_codebooks=9, codebook_size=64, latent_dim=16)
    directory = make_parler_dir("wrapped", codec=codec)
    yield directory
    shutil.rmtree(directory)
