"""What the parts of a Parler-TTS model are trained to imitate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.models.distillation import Objective

if TYPE_CHECKING:
    from torch import nn

__all__ = ["find_objectives"]

_CODECS = ("audio_encoder.model.decoder", "audio_encoder.decoder")
"""Where the codec's decoder is: in the older one, or in that of transformers."""


def find_objectives(root: nn.Module) -> tuple[Objective, ...]:
    """Return what there is to imitate, in the order data flows.

    Args:
        root: The official object.
    """
    known = dict(root.named_modules())
    codec = next((name for name in _CODECS if name in known), _CODECS[0])
    return (
        Objective(
            component="text_encoder",
            module="text_encoder",
            loss="mse",
            outputs=(0,),
            hears="description",
        ),
        # Of the codebooks' scores; text may share the decoder's positions with speech.
        Objective(
            component="decoder",
            module="decoder",
            loss="kl",
            outputs=(0,),
            steps_of="input_ids",
        ),
        Objective(component="audio_encoder", module=codec, loss="waveform"),
    )
