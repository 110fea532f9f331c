"""Which share of the time each component takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import ModelError
from tts_compress.models.base import GraphModel, TorchModel

if TYPE_CHECKING:
    from tts_compress.models.base import Model

__all__ = ["OTHER", "SHORT_TEXT", "can_be_timed", "is_quick", "time_shares"]

SHORT_TEXT = "Hello there."
"""What is spoken."""

OTHER = "other"
"""What is outside all components: text to phonemes, sampling, what joins the components."""

_QUICK = 100_000_000
"""Weights of a model that speaks a short text within seconds."""


def can_be_timed(model: Model) -> bool:
    """Return whether a model speaks, in a way that its components can be told apart."""
    return isinstance(model, GraphModel | TorchModel)


def is_quick(model: Model) -> bool:
    """Return whether a model is small enough to be timed without being asked to."""
    return sum(part.parameters for part in model.components().values()) <= _QUICK


def time_shares(model: Model, text: str = SHORT_TEXT, *, seed: int = 0) -> dict[str, float]:
    """Return each component's share of the time that speaking takes, in [0, 1].

    Args:
        model: One that speaks; one that needs a prompt has it.
        text: What is spoken, twice; the second time counts.
        seed: Of the noise.

    Returns:
        By component, and under `OTHER` what is outside all of them; the sum is 1.

    Raises:
        ModelError: The model speaks no texts, or cannot speak, or has no prompt.
        TextError: It cannot speak this text.
    """
    if isinstance(model, GraphModel):
        from tts_compress.inspection.graph_times import graph_seconds

        seconds = graph_seconds(model, text, seed)
    elif isinstance(model, TorchModel):
        from tts_compress.inspection.torch_times import torch_seconds

        seconds = torch_seconds(model, text, seed)
    else:
        raise ModelError(f"'{model.spec}' speaks no texts, so nothing can be timed")
    total = sum(seconds.values())
    shares = {name: seconds.get(name, 0.0) / total for name in model.components()}
    return shares | {OTHER: seconds.get(None, 0.0) / total}
