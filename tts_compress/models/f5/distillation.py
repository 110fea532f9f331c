"""What the parts of an F5-TTS model are trained to imitate."""

from __future__ import annotations

from tts_compress.models.distillation import Objective

__all__ = ["OBJECTIVES"]

OBJECTIVES = (
    Objective(
        component="transformer",
        module="transformer",
        loss="mse",
        # It keeps the text's embedding from one step of the solver to the next.
        repeated=(("cache", False),),
    ),
    Objective(component="vocoder", module="vocoder", loss="waveform", method="decode"),
)
"""In the order data flows.

The transformer's calls are the steps of the original's own trajectories: what it makes of each
state that the solver reaches, with the text and without.
"""
