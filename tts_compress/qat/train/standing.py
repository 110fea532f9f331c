"""Where a training stands: what a checkpoint holds besides tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Snapshot", "Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Counts and losses."""

    before: dict[str, float]
    """Terms of the loss on held-out examples before the first update: of post-training
    quantization."""

    best: dict[str, float]
    """The same of the best average so far."""

    best_step: int = 0
    """Updates that it has seen; 0 where nothing was better than before."""

    step: int = 0
    """Updates so far."""

    rate_factor: float = 1.0
    """Halved by each recovery."""

    recoveries: int = 0
    stale: int = 0
    """Looks at the held-out examples since the best one."""

    scaler: dict[str, Any] = field(default_factory=dict)
    """Of the gradients in fp16; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """Everything that a training goes on from."""

    standing: Standing
    tensors: dict[str, Tensor]
    """Weights, averages, the best ones, the optimizer's moments, states of random generators."""
