"""Parts that tiny models of several systems have: a tokenizer, and a recording to speak by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def make_tokenizer(transformers: Any, specials: tuple[str, ...], end: int = 127) -> Any:
    """Return a tokenizer with one token per character before `end`, behind special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    ids = {token: number for number, token in enumerate([*specials, *map(chr, range(32, end))])}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    characters.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", ids["</s>"])]
    )
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=characters, **named)


def write_voice(path: Path, *, seconds: float = 2.0, pitch_hz: int = 120) -> None:
    """Write a voice-like buzz with syllables, quiet as recordings are."""
    soundfile = pytest.importorskip("soundfile")
    time = np.arange(round(24_000 * seconds)) / 24_000
    buzz = sum(np.sin(2 * np.pi * pitch_hz * k * time) / k for k in range(1, 20))
    syllables = 0.55 - 0.45 * np.cos(2 * np.pi * 4 * time)
    soundfile.write(path, 0.08 * buzz * syllables, 24_000)


def redraw(module: Any) -> None:
    """Draw a layer's weights until what it says is heard; the constructors draw tiny ones."""
    import torch

    if isinstance(module, torch.nn.Linear):
        module.weight.normal_(0, module.in_features**-0.5)
    elif isinstance(module, torch.nn.Conv1d):
        fan_in = module.in_channels // module.groups * module.kernel_size[0]
        module.weight.normal_(0, fan_in**-0.5)
    elif isinstance(module, torch.nn.ConvTranspose1d):
        reach = module.in_channels * module.kernel_size[0] / module.stride[0]
        module.weight.normal_(0, reach**-0.5)
