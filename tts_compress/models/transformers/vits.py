"""VITS and MMS: the whole voice is one network, whose durations are drawn (Kim et al., 2021)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tts_compress.errors import ModelError, TextError
from tts_compress.models.transformers.system import System, Voice
from tts_compress.models.transformers.tokens import tokenize

_MAX_TOKENS = 4096  # attention takes memory by their square: 64 MiB for each head
_MAX_FRAMES = 60_000  # a quarter of an hour of MMS; the alignment takes frames times tokens


def speak(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    inputs = tokenize(voice.tokenizer, text, int(voice.root.config.vocab_size), _MAX_TOKENS)
    # Between any two tokens, and around them, stands the blank.
    if getattr(voice.tokenizer, "add_blank", False) and inputs["input_ids"].shape[1] < 3:
        raise TextError(f"the voice knows no symbol of {text[:40]!r}; give a text of its language")
    chosen = {} if voice.options.speaker is None else {"speaker_id": int(voice.options.speaker)}
    with torch.no_grad(), _bounded(voice.root):
        waveform: Tensor = voice.root(**inputs, **chosen).waveform
    return waveform[0]


@contextmanager
def _bounded(root: Any) -> Iterator[None]:
    """Refuse durations that no memory can hold, such as those of damaged weights."""

    def check(_module: Any, _inputs: Any, log_durations: Tensor) -> None:
        frames = float(log_durations.exp().ceil().sum()) / float(root.speaking_rate)
        if not frames <= _MAX_FRAMES:  # NaN is not, either
            raise ModelError(
                f"the durations add up to {frames:g} frames, more than {_MAX_FRAMES}; give a "
                "shorter text, or another model: its weights may be damaged"
            )

    handle = root.duration_predictor.register_forward_hook(check)
    try:
        yield
    finally:
        handle.remove()


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
    speak=speak,
)
