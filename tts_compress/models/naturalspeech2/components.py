"""The parts of a NaturalSpeech2 model."""

from __future__ import annotations

__all__ = ["ROLES"]

ROLES = {
    "prompt_lin": "projection of the prompt",
    "prompt_encoder": "prompt encoder",
    "query_emb": "queries of the voice",
    "query_attn": "attention to the voice",
    "prior_encoder.encoder": "text encoder",
    "prior_encoder.duration_predictor": "duration predictor",
    "prior_encoder.pitch_predictor": "pitch predictor",
    "prior_encoder.pitch_embedding": "pitch embedding",
    "diffusion.diff_estimator": "diffusion estimator",
    "codec.encoder": "audio codec's encoder",
    "codec.decoder": "audio codec's decoder",
}
"""In the order data flows; the codec's tables are no operators' weights."""
