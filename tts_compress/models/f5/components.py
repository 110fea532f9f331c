"""The parts of an F5-TTS model."""

from __future__ import annotations

__all__ = ["ROLES"]

ROLES = {
    "transformer.text_embed": "text encoder",
    "transformer.time_embed": "time embedding",
    "transformer.audio_embed": "input embedding",
    "transformer.input_embed": "input embedding",
    "transformer.transformer_blocks": "diffusion transformer",
    "transformer.layers": "diffusion transformer",
    "transformer.long_skip_connection": "skip connection",
    "transformer.norm_out": "output modulation",
    "transformer.proj_out": "output projection",
    "vocoder": "vocoder",
}
"""Of every backbone's parts, in the order data flows."""
