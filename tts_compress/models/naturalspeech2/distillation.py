"""What the parts of NaturalSpeech2 are trained to imitate."""

from __future__ import annotations

from tts_compress.models.distillation import Objective

__all__ = ["OBJECTIVES"]

OBJECTIVES = (
    Objective(component="prompt_encoder", module="prompt_encoder", loss="mse"),
    Objective(component="prior_encoder", module="prior_encoder.encoder", loss="mse"),
    Objective(component="diffusion", module="diffusion.diff_estimator", loss="mse"),
    Objective(component="codec", module="codec.decoder", loss="waveform"),
)
"""In the order data flows.

The estimator's calls are the steps of the original's own trajectories: what it makes of each state
that the solver reaches. The predictors of durations and pitch keep their arithmetic and learn
nothing.
"""
