"""VITS and MMS: the whole voice is one network, whose durations are drawn (Kim et al., 2021)."""

from typing import Any

import torch
from torch import Tensor

from tts_compress.errors import TextError
from tts_compress.models.distillation import Objective
from tts_compress.models.transformers.system import System, Voice, bounded
from tts_compress.models.transformers.tokens import tokenize

_MAX_TOKENS = 4096  # attention takes memory by their square: 64 MiB for each head


def speak(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    inputs = tokenize(voice.tokenizer, text, int(voice.root.config.vocab_size), _MAX_TOKENS)
    # Between any two tokens, and around them, stands the blank.
    if getattr(voice.tokenizer, "add_blank", False) and inputs["input_ids"].shape[1] < 3:
        raise TextError(f"the voice knows no symbol of {text[:40]!r}; give a text of its language")
    chosen = {} if voice.options.speaker is None else {"speaker_id": int(voice.options.speaker)}
    predictor = voice.root.duration_predictor
    with torch.no_grad(), bounded(predictor, lambda found: _frames(voice.root, found)):
        waveform: Tensor = voice.root(**inputs, **chosen).waveform
    return waveform[0]


def _frames(root: Any, log_durations: Tensor) -> float:
    return float((log_durations.exp() / float(root.speaking_rate)).ceil().sum())


SYSTEM = System(
    class_name="VitsModel",
    roles={
        "embed_speaker": "speakers",
        "text_encoder": "text encoder",
        "duration_predictor": "duration predictor",
        "flow": "flow",
        "decoder": "decoder",
        "posterior_encoder": "posterior encoder (only for training)",
    },
    objectives=(
        Objective(module="flow", loss="mse"),
        Objective(module="decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate(None, 16_000),
    speak=speak,
)
