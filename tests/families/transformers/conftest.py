"""Tiny seeded voices of transformers, made by its own classes and saved as it saves them."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.families.tiny import make_tokenizer, redraw
from tests.families.transformers.tiny_voices import write_higgs, write_pocket, write_vibevoice
from tts_compress.models import load

HIFIGAN = {
    "upsample_initial_channel": 64,
    "upsample_rates": [8, 8],
    "upsample_kernel_sizes": [16, 16],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
}
_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
SYMBOLS = " abcdefghijklmnopqrstuvwxyz'-"


@pytest.fixture(scope="session")
def transformers() -> Any:
    """Return the package; tests skip where it, or what it needs to make models, is missing."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    package = pytest.importorskip("transformers", minversion="5.0")
    torch.set_num_threads(1)  # networks this small only wait for a second one
    return package


@pytest.fixture(scope="session")
def make_vits(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Callable[..., Path]:
    """Return a function that writes a tiny VITS; keyword arguments change its configuration."""
    import torch

    def make(name: str, *, tokens: dict[str, Any] | None = None, **changes: Any) -> Path:
        torch.manual_seed(0)
        sizes = {
            "vocab_size": len(SYMBOLS),
            "speaking_rate": 0.3,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "ffn_dim": 64,
            "flow_size": 32,
            "spectrogram_bins": 33,
            "upsample_initial_channel": 128,
            "upsample_rates": [8, 8],
            "upsample_kernel_sizes": [16, 16],
            "resblock_kernel_sizes": [3, 5],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
            "prior_encoder_num_flows": 2,
            "posterior_encoder_num_wavenet_layers": 2,
        }
        model = transformers.VitsModel(transformers.VitsConfig(**sizes | changes)).eval()
        directory = tmp_path_factory.mktemp("vits") / name
        directory.mkdir()
        ids = {symbol: number for number, symbol in enumerate(SYMBOLS)}
        (directory / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        settings = {"language": "eng", "phonemize": False, "pad_token": " "} | (tokens or {})
        tokenizer = transformers.VitsTokenizer(str(directory / "vocab.json"), **settings)
        tokenizer.save_pretrained(directory)
        _make_audible(model, tokenizer("a few words", return_tensors="pt")["input_ids"])
        model.save_pretrained(directory)
        return directory

    return make


def _make_audible(model: Any, ids: Any) -> None:
    """Scale the last convolution until the audio does not clip."""
    import torch

    levels: list[float] = []
    hook = model.decoder.conv_post.register_forward_hook(
        lambda _module, _inputs, found: levels.append(float(found.square().mean().sqrt()))
    )
    with torch.no_grad():
        model(input_ids=ids)
        hook.remove()
        model.decoder.conv_post.weight *= 0.2 / levels[0]


@pytest.fixture(scope="session")
def vits_dir(make_vits: Callable[..., Path]) -> Path:
    """Return the folder of a voice of one speaker; do not write into it."""
    return make_vits("tiny")


@pytest.fixture(scope="session")
def choir(make_vits: Callable[..., Path]) -> Any:
    """Return a voice of three speakers, loaded."""
    return load(f"transformers:{make_vits('choir', num_speakers=3, speaker_embedding_size=8)}")


@pytest.fixture(scope="session")
def speecht5_dir(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
    """Return the folder of a SpeechT5, with its vocoder in `vocoder`; do not write into it."""
    import torch

    torch.manual_seed(0)
    config = transformers.SpeechT5Config(
        vocab_size=96,
        hidden_size=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        speaker_embedding_dim=8,
        speech_decoder_prenet_units=32,
        speech_decoder_postnet_units=32,
        max_text_positions=200,
    )
    directory = tmp_path_factory.mktemp("speecht5") / "tiny"
    model = transformers.SpeechT5ForTextToSpeech(config).eval()
    vocoder = transformers.SpeechT5HifiGan(
        transformers.SpeechT5HifiGanConfig(model_in_dim=16, **HIFIGAN)
    ).eval()
    with torch.no_grad():
        for module in (*model.modules(), *vocoder.modules()):
            redraw(module)
        model.speech_decoder_postnet.prob_out.bias.fill_(-9)  # ends at the limit
        vocoder.conv_post.weight *= 0.2
    model.save_pretrained(directory)
    vocoder.save_pretrained(directory / "vocoder")
    make_tokenizer(transformers, _SPECIALS, end=123).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def fastspeech2_dir(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
    """Return the folder of a tiny FastSpeech2; do not write into it."""
    import torch

    torch.manual_seed(0)
    config = transformers.FastSpeech2ConformerConfig(
        vocab_size=96,
        hidden_size=32,
        num_mel_bins=16,
        encoder_layers=2,
        encoder_linear_units=64,
        decoder_layers=2,
        decoder_linear_units=64,
        duration_predictor_channels=32,
        energy_predictor_channels=32,
        pitch_predictor_channels=32,
        speech_decoder_postnet_units=32,
    )
    vocoder = transformers.FastSpeech2ConformerHifiGanConfig(model_in_dim=16, **HIFIGAN)
    whole = transformers.FastSpeech2ConformerWithHifiGanConfig(
        model_config=config.to_dict(), vocoder_config=vocoder.to_dict()
    )
    model = transformers.FastSpeech2ConformerWithHifiGan(whole).eval()
    with torch.no_grad():
        for module in model.modules():
            redraw(module)
        model.model.duration_predictor.linear.bias.fill_(2)  # about six frames for a symbol
        model.vocoder.conv_post.weight *= 0.2
    directory = tmp_path_factory.mktemp("fastspeech2") / "tiny"
    model.save_pretrained(directory)
    make_tokenizer(transformers, _SPECIALS, end=123).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def bark_dir(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
    """Return the folder of a tiny Bark; do not write into it."""
    import torch

    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_size": 64, "block_size": 256}
    codec = transformers.EncodecConfig(
        num_filters=8, hidden_size=16, codebook_size=16, codebook_dim=16, target_bandwidths=[6.0]
    )
    config = transformers.BarkConfig(
        semantic_config=sizes | {"input_vocab_size": 123, "output_vocab_size": 24},
        coarse_acoustics_config=sizes | {"input_vocab_size": 55, "output_vocab_size": 52},
        fine_acoustics_config=sizes | {"input_vocab_size": 17, "output_vocab_size": 17},
        codec_config=codec.to_dict(),
    )
    model = transformers.BarkModel(config).eval()
    with torch.no_grad():
        for part in (model.semantic, model.coarse_acoustics, model.fine_acoustics):
            for module in part.modules():
                redraw(module)
        for module in model.codec_model.modules():
            if isinstance(module, torch.nn.modules.conv._ConvNd):
                module.weight = module.weight.normal_(0, module.weight[0].numel() ** -0.5)
        for layer in model.codec_model.quantizer.layers:
            layer.codebook.embed.normal_()
    directory = tmp_path_factory.mktemp("bark") / "tiny"
    model.save_pretrained(directory)
    # By hand: version 5.23 cannot save a BarkGenerationConfig, though it reads one.
    settings = json.dumps(_bark_generation())
    (directory / "generation_config.json").write_text(settings, encoding="utf-8")
    make_tokenizer(transformers, _SPECIALS, end=123).save_pretrained(directory)
    return directory


def _bark_generation() -> dict[str, Any]:
    """Return settings that fit a vocabulary of 20 semantic tokens and codebooks of 16."""
    from transformers.models.bark import generation_configuration_bark as settings

    semantic = settings.BarkSemanticGenerationConfig(
        eos_token_id=20,
        max_new_tokens=12,
        do_sample=True,
        text_encoding_offset=24,
        text_pad_token=121,
        semantic_infer_token=122,
        semantic_vocab_size=20,
        max_input_semantic_length=160,
    )
    coarse = settings.BarkCoarseGenerationConfig(
        do_sample=True,
        coarse_semantic_pad_token=52,
        coarse_infer_token=54,
        max_coarse_input_length=32,
        max_coarse_history=30,
        sliding_window_len=12,
    )
    fine = settings.BarkFineGenerationConfig(
        temperature=0.5, max_fine_history_length=8, max_fine_input_length=16
    )
    return {
        "semantic_config": semantic.to_dict(),
        "coarse_acoustics_config": coarse.to_dict(),
        "fine_acoustics_config": fine.to_dict(),
        "sample_rate": 24_000,
        "codebook_size": 16,
        "model_type": "bark",
    }


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a folder and changes settings in a JSON file of the copy."""

    def edit(directory: Path, name: str, **changes: Any) -> Path:
        copied = shutil.copytree(directory, tmp_path / "edited")
        settings = json.loads((copied / name).read_text(encoding="utf-8"))
        (copied / name).write_text(json.dumps(settings | changes), encoding="utf-8")
        return copied

    return edit


@pytest.fixture(scope="session")
def csm_dir(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
    """Return the folder of a tiny CSM; do not write into it."""
    import torch

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    codec = transformers.MimiConfig(
        **sizes,
        num_filters=16,
        upsampling_ratios=[4, 2],
        num_quantizers=4,
        num_hidden_layers=1,
        num_key_value_heads=2,
        head_dim=32,
        codebook_size=64,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        upsample_groups=64,
        sampling_rate=2400,
        frame_rate=None,
        num_semantic_quantizers=1,
        sliding_window=20,
    )
    sizes |= {"num_key_value_heads": 2, "vocab_size": 35, "num_codebooks": 4}
    depth = {**sizes, "backbone_hidden_size": 64, "num_hidden_layers": 1}
    config = transformers.CsmConfig(
        **sizes,
        text_vocab_size=140,
        num_hidden_layers=2,
        max_position_embeddings=256,
        pad_token_id=0,
        codebook_pad_token_id=34,
        bos_token_id=1,
        audio_token_id=138,
        audio_eos_token_id=139,
        depth_decoder_config=depth | {"max_position_embeddings": 5},
        codec_config=codec,
    )
    model = transformers.CsmForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(do_sample=True, max_new_tokens=12)
    with torch.no_grad():
        for part in model.codec_model.modules():
            if hasattr(part, "embed_sum"):
                part.embed_sum.normal_()
        model.codec_model.decoder.decoder_seanet.layers[-1].conv.weight *= 0.01
    directory = tmp_path_factory.mktemp("csm") / "tiny"
    model.save_pretrained(directory)
    make_tokenizer(transformers, _SPECIALS).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def dia_dir(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
    """Return the folder of a tiny Dia with its codec; do not write into it."""
    import torch

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
    sizes |= {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    special = {"bos_token_id": 66, "eos_token_id": 64, "pad_token_id": 65}
    decoder = {f"cross_{name}": sizes[name] for name in ("num_attention_heads", "head_dim")}
    config = transformers.DiaConfig(
        encoder_config={**sizes, "num_key_value_heads": 2},
        decoder_config={
            **sizes,
            **decoder,
            "num_key_value_heads": 1,
            "cross_num_key_value_heads": 2,
            "cross_hidden_size": 64,
            "num_channels": 3,
            "vocab_size": 68,
            **special,
        },
        delay_pattern=[0, 2, 3],
    )
    model = transformers.DiaForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, max_length=30, guidance_scale=3.0, temperature=1.8, top_k=45, **special
    )
    codec = transformers.DacConfig(
        encoder_hidden_size=8,
        decoder_hidden_size=64,
        downsampling_ratios=[2, 4],
        upsampling_ratios=[4, 2],
        n_codebooks=3,
        codebook_size=64,
        codebook_dim=4,
        sampling_rate=2400,
    )
    directory = tmp_path_factory.mktemp("dia") / "tiny"
    model.save_pretrained(directory)
    transformers.DacModel(codec).eval().save_pretrained(directory / "vocoder")
    transformers.DiaTokenizer().save_pretrained(directory)
    return directory


def _folder(write: Callable[[Any, Path], None], *needed: str) -> Any:
    """Return the fixture of a folder that a function writes a voice into."""

    @pytest.fixture(scope="session")
    def folder(tmp_path_factory: pytest.TempPathFactory, transformers: Any) -> Path:
        """Return the voice's folder; do not write into it."""
        for package in needed:
            pytest.importorskip(package)
        directory = tmp_path_factory.mktemp("voice") / "tiny"
        write(transformers, directory)
        return directory

    return folder


pocket_dir = _folder(write_pocket)
phonon_dir = _folder(partial(write_pocket, kind="GradiumPhononTTS"))
higgs_dir = _folder(write_higgs)
vibevoice_dir = _folder(write_vibevoice, "diffusers")  # by whose solver it draws sound


def _loaded(name: str) -> Any:
    """Return the fixture of the voice in a folder."""

    @pytest.fixture(scope="session")
    def voice(request: pytest.FixtureRequest) -> Any:
        """Return the voice, loaded; it is never modified."""
        return load(f"transformers:{request.getfixturevalue(f'{name}_dir')}")

    return voice


vits = _loaded("vits")
speecht5 = _loaded("speecht5")
fastspeech2 = _loaded("fastspeech2")
bark = _loaded("bark")
csm = _loaded("csm")
dia = _loaded("dia")
pocket = _loaded("pocket")
phonon = _loaded("phonon")
higgs = _loaded("higgs")
vibevoice = _loaded("vibevoice")
