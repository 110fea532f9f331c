"""The parts of a Parler-TTS model."""

from __future__ import annotations

__all__ = ["ROLES"]

ROLES = {
    "text_encoder": "description encoder",
    "enc_to_dec_proj": "projection of the description",
    "embed_prompts": "text embedding",
    "decoder": "speech language model",
    "audio_encoder": "audio codec",
}
"""In the order data flows."""
