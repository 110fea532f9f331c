"""What is made integer, and with which of the equivalent kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["IntegerPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerPlan:
    """The decisions of a recipe, in terms of one graph."""

    convolutions: frozenset[str]
    """Output tensors of the convolutions that compute on codes; what stands between follows."""

    weight_limit: int = 127
    """The largest weight code; 63 keeps sums of two products in 16 bits where there is no VNNI."""

    leaky_relu: Literal["max", "lookup"] = "max"
    """Two vector operations in the input's code, or a table with a code of its own."""
