"""A tiny Whisper of random weights, made from transformers' own classes."""

import json
from itertools import product
from pathlib import Path
from typing import Any


def build(folder: Path, *, multilingual: bool) -> Path:
    """Write a model as transformers does; return its folder."""
    import torch
    from transformers import (
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    tokenizer, languages = _tokenizer(multilingual)
    end, start = (
        tokenizer.token_to_id(f"<|{name}|>") for name in ("endoftext", "startoftranscript")
    )
    torch.manual_seed(1)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=80,
        decoder_start_token_id=start,
        eos_token_id=end,
        bos_token_id=end,
        pad_token_id=end,
        suppress_tokens=[],
        begin_suppress_tokens=[end],
        init_std=1.0,
    )
    model = WhisperForConditionalGeneration(config)
    settings: Any = model.generation_config
    settings._from_model_config = False  # or it is made from the model's configuration again
    settings.max_length = 24
    settings.alignment_heads = [[0, 0]]
    settings.suppress_tokens, settings.begin_suppress_tokens = [], [end]
    settings.no_timestamps_token_id = tokenizer.token_to_id("<|notimestamps|>")
    settings.is_multilingual = multilingual
    if multilingual:
        settings.lang_to_id = {name: tokenizer.token_to_id(name) for name in languages}
        tasks = ("transcribe", "translate")
        settings.task_to_id = {name: tokenizer.token_to_id(f"<|{name}|>") for name in tasks}
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    marks = {f"{name}_token": "<|endoftext|>" for name in ("eos", "bos", "unk", "pad")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(found | {"tokenizer_class": "WhisperTokenizer"}), encoding="utf-8")
    return folder


def convert(folder: Path, target: Path) -> Path:
    """Write a model of `build` in CTranslate2's format; return its folder."""
    from ctranslate2.converters import TransformersConverter

    copied = ["tokenizer.json", "preprocessor_config.json"]
    TransformersConverter(str(folder), copy_files=copied).convert(str(target))
    return target


def _tokenizer(multilingual: bool) -> tuple[Any, list[str]]:
    """Return a tokenizer of single bytes with Whisper's special tokens, and those of languages."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    languages = [f"<|{code}|>" for code in LANGUAGES]
    tasks = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
    special = ["<|endoftext|>", "<|startoftranscript|>", *languages]
    special += [f"<|{task}|>" for task in tasks]
    special += [f"<|{index * 0.02:.2f}|>" for index in range(1501)]
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = product("abcdefghijklmnopqrstuvwxyz", repeat=2)
    vocabulary |= {f"Ġ{''.join(word)}": 256 + index for index, word in enumerate(words)}
    if multilingual:
        # By this token, which their vocabularies have, CTranslate2 knows multilingual Whispers.
        vocabulary[""] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer, languages
