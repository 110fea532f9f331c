"""Bark: three language models of tokens, one behind the other, and EnCodec (Suno, 2023)."""

from typing import Any

import torch
from torch import Tensor

from tts_compress.errors import ModelError
from tts_compress.models.distillation import Objective
from tts_compress.models.transformers.system import System, Voice
from tts_compress.models.transformers.tokens import tokenize

_LONGEST = 256  # what the official configuration says where nothing is stated


def speak(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official processor and `generate`."""
    import transformers

    stated = _semantic_settings(voice.root)
    longest = int(stated.get("max_input_semantic_length", _LONGEST))
    rows = int(voice.root.semantic.config.input_vocab_size) - int(
        stated.get("text_encoding_offset", 10_048)
    )
    # Refused here: the official code cuts off what is too long, without a word.
    tokenize(voice.tokenizer, text, rows, longest, add_special_tokens=False)
    processor = transformers.BarkProcessor(voice.tokenizer)
    preset = voice.source.read_preset()
    inputs = processor(text, voice_preset=preset, max_length=longest)
    if preset is not None:
        inputs["history_prompt"] = {
            name: torch.as_tensor(values) for name, values in inputs["history_prompt"].items()
        }
    waveform: Tensor = voice.root.generate(**inputs)
    return waveform.reshape(-1)


def _semantic_settings(root: Any) -> dict[str, Any]:
    settings = getattr(root.generation_config, "semantic_config", None)
    if not isinstance(settings, dict):
        raise ModelError(
            "the model has no generation_config.json with 'semantic_config'; fetch it again"
        )
    return settings


SYSTEM = System(
    class_name="BarkModel",
    roles={
        "semantic": "language model of the text's tokens",
        "coarse_acoustics": "language model of the first codebooks",
        "fine_acoustics": "predictor of the other codebooks",
        "codec_model": "audio codec",
    },
    objectives=(Objective(module="codec_model.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("codec_config", 24_000),
    speak=speak,
)
