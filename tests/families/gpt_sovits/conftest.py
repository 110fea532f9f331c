"""Tiny seeded GPT-SoVITS models in the official formats, made by the user's clone's classes."""

import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.models.base import Prompt
from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.checkpoint import VERSIONS
from tts_compress.models.gpt_sovits.loading import Official
from tts_compress.models.gpt_sovits.model import GptSovitsModel

TEXTS = ("please call again at ten", "the door was open")
PROMPT = "a quiet day in spring"

_SYMBOLS = (
    "AA1",
    "B",
    "CH",
    "D",
    "EH1",
    "F",
    "G",
    "HH",
    "IY1",
    "K",
    "L",
    "M",
    "N",
    "OW1",
    "P",
    "S",
)

_NEEDED = ("torch", "transformers", "peft", "pytorch_lightning", "librosa", "accelerate", "ffmpeg")


@pytest.fixture(scope="session")
def official() -> Official:
    """Return upstream's modules, whose text frontends take letters for phonemes.

    The real ones read dictionaries and networks that are fetched when they are first used. All that
    follows the phonemes is upstream's.
    """
    if not os.environ.get(GPT_SOVITS.variable):
        pytest.skip(f"no clone; set {GPT_SOVITS.variable} to one of {GPT_SOVITS.repository}")
    if lacking := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(lacking)} is not installed")
    import torch

    from tts_compress.models.gpt_sovits import model
    from tts_compress.models.gpt_sovits.loading import Official

    torch.set_num_threads(1)  # networks this small only wait for a second one
    found = Official()
    found.text.clean_text = _spell
    vars(model)["check_frontend"] = lambda *_: None  # which is about the real ones
    return found


def _spell(text: str, language: str, version: str) -> tuple[list[str], list[int] | None, str]:
    """Return a phoneme for each letter, in the place of upstream's function of this signature."""
    del version
    kept = "".join(letter for letter in text if letter.isalnum() or letter in ".,")
    phones = [letter if letter in ".," else _SYMBOLS[ord(letter) % 16] for letter in kept]
    return phones, [1] * len(phones) if language == "zh" else None, kept


@pytest.fixture(scope="session")
def make_gpt_sovits(
    official: Official, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that writes a tiny model and returns its `tts_infer.yaml`."""

    def make(version: str = "v2", **changes: Any) -> Path:
        import torch

        folder = tmp_path_factory.mktemp(version)
        torch.manual_seed(4 if version == "v1" else 0)  # by 0 v1's decoder stands still at the rail
        with official.running():
            _write_t2s(official, folder, version)
            _write_sovits(official, folder, version, changes)
            _write_encoders(folder)
        _write_recording(folder / "reference.wav")
        (folder / "reference.txt").write_text(f"{PROMPT}\n", encoding="utf-8")
        stated = {
            "t2s_weights_path": "t2s.ckpt",
            "vits_weights_path": "sovits.pth",
            "bert_base_path": "bert",
            "cnhuhbert_base_path": "hubert",
            "version": version,
        }
        config = folder / "tts_infer.yaml"
        config.write_text(json.dumps({"custom": stated}), encoding="utf-8")  # which is YAML too
        return config

    return make


@pytest.fixture(scope="session")
def tiny_config(make_gpt_sovits: Callable[..., Path]) -> Path:
    """Return the configuration of a tiny v2; do not write beside it."""
    return make_gpt_sovits()


@pytest.fixture(scope="session")
def tiny(tiny_config: Path) -> GptSovitsModel:
    """Return that model, which speaks English by its recording; it is never modified."""
    return GptSovitsModel.open(f"{tiny_config}?text_lang=en&prompt_lang=en", "gpt-sovits:tiny")


@pytest.fixture
def prompt(tiny_config: Path) -> Prompt:
    """Return the recording and its text."""
    return Prompt(audio=tiny_config.with_name("reference.wav"), text=PROMPT)


def _write_t2s(official: Official, folder: Path, version: str) -> None:
    import torch

    from tts_compress.models.gpt_sovits.checkpoint import write_checkpoint

    config = {
        "data": {"max_sec": 1},
        "model": {
            "hidden_dim": 64,
            "embedding_dim": 64,
            "head": 4,
            "n_layer": 2,
            "vocab_size": 1025,
            "phoneme_vocab_size": 512 if version == "v1" else 732,
            "dropout": 0,
            "EOS": 1024,
        },
    }
    module = official.inference.Text2SemanticLightningModule(config, "", is_train=False)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.Linear | torch.nn.Embedding):
                part.weight.normal_(0, 0.15)
        for layer in module.model.h.layers:  # biases begin as zeros
            layer.self_attn.in_proj_weight.normal_(0, 0.15)
            layer.self_attn.in_proj_bias.normal_(0, 0.1)
            layer.self_attn.out_proj.bias.normal_(0, 0.1)
        head = module.model.ar_predict_layer.weight
        # As a trained one, it mostly is sure of itself.
        head.normal_(0, 0.3).mul_(torch.randn(len(head), 1).mul(0.7).exp())
    write_checkpoint(folder / "t2s.ckpt", module.state_dict(), config, info="")


def _write_sovits(official: Official, folder: Path, version: str, changes: dict[str, Any]) -> None:
    import torch

    from tts_compress.models.gpt_sovits.checkpoint import write_checkpoint

    config = json.loads((official.checkout.root / "GPT_SoVITS/configs/s2.json").read_text("utf-8"))
    config["model"] |= {
        "filter_channels": 64,
        "n_layers": 2,
        "upsample_initial_channel": 128,
        "version": version,
    } | changes
    kind = "SynthesizerTrnV3" if version in {"v3", "v4"} else "SynthesizerTrn"
    network = getattr(official.inference, kind)(1025, 32, n_speakers=300, **config["model"])
    assert network.enc_p.text_embedding.num_embeddings == VERSIONS[version].symbols
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():  # flows begin as the identity; a trained one is none
                parameter.normal_(0, 0.1)
        codebook = network.quantizer.vq.layers[0]._codebook
        codebook.embed.normal_()
        codebook.inited.fill_(1)
        if hasattr(network, "dec"):
            network.dec.conv_post.weight *= 10  # loud enough to be audible
    tensors = network.state_dict()
    header = VERSIONS[version].header
    if header is None:  # upstream trains only changes to it, and knows the whole one by checksum
        content = {"weight": tensors, "config": config, "info": ""}
        torch.save(content, folder / "sovits.pth")
        return
    write_checkpoint(folder / "sovits.pth", tensors, config, header=header, info="")


def _write_encoders(folder: Path) -> None:
    """Write the text and the speech encoder; their outer widths are fixed by the synthesizer's."""
    transformers = importlib.import_module("transformers")
    bert = transformers.BertConfig(
        vocab_size=400,
        hidden_size=1024,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
    )
    transformers.BertForMaskedLM(bert).save_pretrained(folder / "bert")
    letters = [chr(number) for number in [*range(33, 127), *range(0x4E00, 0x4F00)]]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    words = folder / "bert" / "vocab.txt"
    words.write_text("\n".join(vocabulary), encoding="utf-8")
    transformers.BertTokenizerFast(vocab_file=str(words)).save_pretrained(folder / "bert")
    hubert = transformers.HubertConfig(
        hidden_size=768,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(32,) * 7,
        num_conv_pos_embeddings=16,
    )
    transformers.HubertModel(hubert).save_pretrained(folder / "hubert")
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder / "hubert")


def _write_recording(path: Path) -> None:
    """Write four seconds of a gliding tone with overtones and pauses."""
    import soundfile

    time = np.arange(4 * 24000) / 24000
    glide = 2 * np.pi * np.cumsum(140 + 40 * np.sin(2 * time)) / 24000
    voice = sum(np.sin(k * glide) / k for k in range(1, 12))
    noise = np.random.default_rng(0).standard_normal(time.shape) * 0.02
    soundfile.write(path, (0.2 * voice * (np.sin(5 * time) > -0.5) + noise) * 0.5, 24000)
