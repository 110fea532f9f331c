"""The voice: its configuration, its tokenizer, and the folder that the official package opens."""

from __future__ import annotations

import re
from contextlib import chdir
from typing import TYPE_CHECKING, Any

import torch
import yaml
from demo_voice.speech import SAMPLE_RATE
from safetensors.torch import save_file
from scipy.io import wavfile
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

LATENT = 32
_WIDTH = 64
_LAYER = {
    "d_model": _WIDTH,
    "input_dimension": _WIDTH,
    "output_dimensions": [_WIDTH],
    "num_heads": 4,
    "layer_scale": 0.1,
    "context": 50,
    "dim_feedforward": 192,
}
_CONVOLUTIONS = {
    "dimension": _WIDTH,
    "channels": 1,
    "n_residual_layers": 1,
    "ratios": [8, 5, 4],
    "kernel_size": 3,
    "residual_kernel_size": 3,
    "last_kernel_size": 3,
    "dilation_base": 2,
    "pad_mode": "constant",
    "compress": 2,
}
CODEC: dict[str, Any] = {
    "dtype": "float32",
    "sample_rate": SAMPLE_RATE,
    "channels": 1,
    "frame_rate": 20.0,
    "inner_dim": LATENT,
    "outer_dim": _WIDTH,
    "quantizer": {"dimension": LATENT, "output_dimension": _WIDTH},
    "seanet": _CONVOLUTIONS | {"n_filters": 8},
    "transformer": _LAYER | {"num_layers": 1},
    "decoder_seanet": _CONVOLUTIONS | {"n_filters": 16},
    "decoder_transformer": _LAYER | {"num_layers": 2},
}
LANGUAGE: dict[str, Any] = {
    "dtype": "float32",
    "insert_bos_before_voice": True,
    "flow": {"dim": 96, "depth": 2, "type": "pointwise"},
    "transformer": {
        "d_model": 128,
        "hidden_scale": 2,
        "max_period": 10_000,
        "num_heads": 4,
        "num_layers": 5,
    },
}


def build_tokenizer(said: dict[str, str]) -> Tokenizer:
    """Return a tokenizer that rewrites known words as phonemes, one token for each.

    A letter of any other word stands for the phoneme that is written like it.
    """
    plain = "abcdefghijklmnopqrstuvwxyz .,?!'"
    symbols = sorted({*plain, *"".join(said.values())})
    model = models.WordLevel({s: n for n, s in enumerate(["<unk>", *symbols])}, "<unk>")
    tokenizer = Tokenizer(model)
    rules = [normalizers.Lowercase()]
    for word, phonemes in said.items():
        rules.append(normalizers.Replace(Regex(rf"\b{re.escape(word)}\b"), phonemes))
    tokenizer.normalizer = normalizers.Sequence(rules)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    # The package tokenizes again what it decoded: phonemes have to stay what they are.
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def build(folder: Path, said: dict[str, str]) -> Any:
    """Write configuration and tokenizer, and return the official model with random weights."""
    from pocket_tts import TTSModel

    threads = torch.get_num_threads()
    tokenizer = build_tokenizer(said)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = _settings(tokenizer.get_vocab_size())
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with chdir(folder):
        model = TTSModel.load_model(config="config.yaml")
    torch.set_num_threads(threads)
    return model


def write(folder: Path, model: Any, prompt: Tensor) -> None:
    """Write the weights in FP16, the configuration that names them, and the prompt, int16 [n]."""
    halves = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(halves, folder / "model.safetensors")
    settings = _settings(model.config.flow_lm.lookup_table.n_bins)
    settings["weights_path"] = "model.safetensors"
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    wavfile.write(folder / "reference.wav", SAMPLE_RATE, prompt.numpy())


def _settings(tokens: int) -> dict[str, Any]:
    width = LANGUAGE["transformer"]["d_model"]
    table = {"dim": width, "n_bins": tokens, "tokenizer": "tokenizers"}
    table["tokenizer_path"] = "tokenizer.json"
    return {
        "flow_lm": LANGUAGE | {"lookup_table": table},
        "mimi": CODEC,
        "capitalize_first_letter": False,
        "model_recommended_frames_after_eos": 2,
        "default_eos_threshold": 0.0,
        "default_temperature": 0.3,
    }
