"""The voice: its configuration, its tokenizer, and the folder that the official package opens."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from demo_voice.speech import SAMPLE_RATE
from safetensors.torch import save_file
from scipy.io import wavfile
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = Path(__file__).parent / "voice/config.yaml"


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
    settings = yaml.safe_load(_CONFIG.read_text(encoding="utf-8"))
    del settings["weights_path"]
    settings["flow_lm"]["lookup_table"]["n_bins"] = tokenizer.get_vocab_size()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with chdir(folder):
        model = TTSModel.load_model(config="config.yaml")
    torch.set_num_threads(threads)
    return model


def write(folder: Path, model: Any, prompt: Tensor) -> None:
    """Write the weights in FP16, the configuration that names them, and the prompt, int16 [n]."""
    halves = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(halves, folder / "model.safetensors")
    with (folder / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("weights_path: model.safetensors\n")
    wavfile.write(folder / "reference.wav", SAMPLE_RATE, prompt.numpy())
